"""One module a library, each with the same few names.

``prepare(kind, source, folder)`` writes the data of ``source``, Arrow files, into ``folder`` in the library's own
format. A library that reads these files in place has no such function. ``load(view)`` returns a loader for a pass, used
as the library's documentation recommends, or raises ``NotOfferedError``.

``STATES`` says where the state of a run comes from: "none", "read" if the rows before have to be read to make one, or
"computed", and then ``resume_point(view, loader, rows)`` makes one.
"""
