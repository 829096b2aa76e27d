"""Where bytes come from: listings, local files and maps of them, object stores, retries, the cache of remote blocks."""
