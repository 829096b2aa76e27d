"""Helpers without a domain: array types, hashing, shared files, argument checks, message words, the environment."""
