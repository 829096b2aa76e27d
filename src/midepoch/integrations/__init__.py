"""Front doors: other libraries' ways of naming data, opened as midepoch datasets."""
