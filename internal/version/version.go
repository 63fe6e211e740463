// Package version holds the version that a binary was built as.
package version

// Version is set by the linker.
var Version = "v0.0.0-dev"
