package volumecopy

import "time"

// Limits of what one side takes from the other, and of trees that can be copied.
const (
	// maxEntries is how many files, directories and links a volume may have.
	maxEntries = 4 << 20
	// maxDirectory is how many of them one directory may have.
	maxDirectory = 1 << 20
	// maxPath is how many bytes a path may have, and maxName one of its elements; maxDepth is how
	// many elements.
	maxPath  = 4095
	maxName  = 255
	maxDepth = 512
	// maxSize is how large one file may be: 1 PiB, as a volume.
	maxSize int64 = 1 << 50
	// maxExtents is how many parts with data of one file are told apart.
	maxExtents = 4096
	// maxXattrs is how many extended attributes one entry may have, maxXattrBytes how many bytes
	// they may have together.
	maxXattrs     = 64
	maxXattrBytes = 128 << 10
	// maxMessage is how many bytes a message beside the archive may have.
	maxMessage = 4 << 10
	// maxHandshakes is how many connections may be at their beginning at once, handshakeTimeout for
	// how long.
	maxHandshakes    = 4
	handshakeTimeout = 10 * time.Second
	// writeTimeout is how long the other side may take nothing.
	writeTimeout = 2 * time.Minute
	// maxPasses is how often all is copied to a destination that does not become equal.
	maxPasses = 4
	// minSecret is how many bytes the secret has at least.
	minSecret = 32
)
