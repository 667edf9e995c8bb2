//! The tool `elsa`, as a library that its tests and fuzz targets share.
