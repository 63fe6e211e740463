// Package printer prints what a command found: for people as tables, for programs as JSON
// or YAML. It knows nothing of commands.
package printer
