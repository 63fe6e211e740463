// Package volumecopy copies what is on one volume to another one in another cluster. A sender, in a
// pod that mounts the source read-only, connects to a receiver, in a pod that mounts the
// destination. Both hold the same one-time secret, by which they know each other.
//
// What crosses is a tar archive with what the destination lacks. Afterwards each side reads its own
// volume again and computes a digest of all of it; they have to be equal:
//
//	sender                                   receiver
//	copy            ───────────────────────▶
//	                ◀───────────────────────  what it has
//	archive         ───────────────────────▶  writes it, removes what is not in it
//	                ◀───────────────────────  copied
//	   … until the sender is sealed: from then on nobody else can use the source …
//	copy, as before ───────────────────────▶
//	digest          ───────────────────────▶
//	   both read their volumes
//	                ◀───────────────────────  its digest
//	done            ───────────────────────▶  removes its mark
//
// Either side can be interrupted at any moment and begin again: what was written as a whole is
// kept. A destination that somebody else wrote to is never written to.
package volumecopy
