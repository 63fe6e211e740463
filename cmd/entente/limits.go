package main

// Limits of what the command reads. What agents answer has limits of its own; these are
// for the case that one is broken.
const (
	// maxTokenLine is the most bytes of the line on standard input that holds a
	// token.
	maxTokenLine = 16 << 10
	// maxNamespaces is the most namespaces that the shell is offered.
	maxNamespaces = 500
	// infoDomains is how many domains `entente info` has a line for.
	infoDomains = 8
)
