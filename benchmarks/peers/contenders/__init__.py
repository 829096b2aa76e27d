"""One module a library, each with the same two functions.

``prepare(kind, source, folder)`` writes the data of ``source``, Arrow files, into ``folder`` in the library's own
format. A library that reads these files in place has no such function. ``load(view)`` returns a loader for a pass, used
as the library's documentation recommends, or raises ``NotOfferedError``.
"""
