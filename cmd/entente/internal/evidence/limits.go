package evidence

// Limits of files, which may come from anybody.
const (
	// MaxFile is the most bytes of a file with contracts and statements.
	MaxFile = 4 << 20
	// MaxEnvelopes is the most contracts and statements in all files together.
	MaxEnvelopes = 1024
	// maxNesting is how deep lists may be nested in such a file.
	maxNesting = 4
)
