package main

// Limits of what the command reads. Responses of agents have limits of their own; these are
// for the case that an agent is broken.
const (
	// maxTokenLine is the maximum length of the line with a token on standard input, in
	// bytes.
	maxTokenLine = 16 << 10
	// maxNamespaces is the maximum number of namespaces that are offered as completions.
	maxNamespaces = 500
	// infoDomains is the number of domains for which `entente info` has a line.
	infoDomains = 8
	// infoPrefixes is the number of prefixes of pods that `entente info` lists.
	infoPrefixes = 4
)
