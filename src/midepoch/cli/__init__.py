"""The command ``midepoch``: look at files and checkpoints, verify resumes, trace steps. It needs no torch by itself."""
