package volumecopy

import "time"

// Limits on what one side accepts from the other, and on trees that can be copied.
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
	// maxExtents is how many separate parts with data one file may have; of more, the zeros between are
	// copied, too.
	maxExtents = 4096
	// maxXattrs is how many extended attributes one entry may have, maxXattrBytes how many bytes
	// they may have together.
	maxXattrs     = 64
	maxXattrBytes = 128 << 10
	// maxMessage bounds a message other than the archive.
	maxMessage = 4 << 10
	// maxHandshakes is how many handshakes may be in progress at once, and handshakeTimeout how
	// long one may take.
	maxHandshakes    = 4
	handshakeTimeout = 10 * time.Second
	// writeTimeout is how long the other side may receive nothing.
	writeTimeout = 2 * time.Minute
	// maxPasses is how often a volume is copied to a destination that does not become equal.
	maxPasses = 4
	// minSecret is the shortest length of the secret.
	minSecret = 32
)
