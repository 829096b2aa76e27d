"""The processes that read for a Loader, and how their batches get to a device."""
