"""The stages of a pipeline: what turns rows into items, and the one rule by which every stage resumes."""
