package main

// Limits of what the command reads. Files may come from anybody; what agents
// answer has limits of its own, and these are for the case that one is broken.
const (
	// maxEvidenceFile is the most bytes of a file with contracts and statements.
	maxEvidenceFile = 4 << 20
	// maxEnvelopes is the most contracts and statements in all files together.
	maxEnvelopes = 1024
	// maxNesting is how deep lists may be nested in such a file.
	maxNesting = 4
	// maxTokenLine is the most bytes of the line on standard input that holds a
	// token.
	maxTokenLine = 16 << 10
	// maxPages is the most pages of a list.
	maxPages = 200
	// infoDomains is how many domains `entente info` has a line for.
	infoDomains = 8
)
