package controller

// Limits of what peers make this cluster write of what they say: bytes of whole
// objects, as etcd keeps each revision for 5 to 10 minutes.
const (
	// peerWriteBytes is how many bytes a second one peer may have written in the long
	// run, and peerWriteBurst how many at once.
	peerWriteBytes = 32 << 10
	peerWriteBurst = 4 << 20
	// allWriteBytes and allWriteBurst are those of all peers together.
	allWriteBytes = 256 << 10
	allWriteBurst = 48 << 20
	// writeOverhead is what a write costs besides the object's text.
	writeOverhead = 4 << 10
)
