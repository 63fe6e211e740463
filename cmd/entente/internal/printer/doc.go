// Package printer prints the results of commands: for people as tables, for programs as JSON
// or YAML. It does not know the commands.
package printer
