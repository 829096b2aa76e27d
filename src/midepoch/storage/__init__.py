"""Bytes from somewhere: listing, local files, object stores, retries and the cache of remote blocks."""
