package evidence

// Limits of files, which may come from anyone.
const (
	// MaxFile is the maximum size of a file with contracts and statements, in bytes.
	MaxFile = 4 << 20
	// MaxEnvelopes is the maximum number of contracts and statements in all files together.
	MaxEnvelopes = 1024
	// maxNesting is how deep lists may be nested in such a file.
	maxNesting = 4
)
