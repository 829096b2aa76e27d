"""Helpers without a domain: array types, hashing, atomic files, argument checks, the launched rank."""
