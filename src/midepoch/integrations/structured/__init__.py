"""`StructuredDataset`: tables in files and object stores, with a DataLoader in one call."""
