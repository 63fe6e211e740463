// Package volumecopy copies a volume to one in another cluster. A sender, in a pod that mounts the
// source read-only, connects to a receiver, in a pod that mounts the destination. They authenticate
// each other by a one-time secret that both have.
//
// The sender sends a tar archive of what the destination lacks. Afterwards each side reads its own
// volume again and computes a digest of all of it; the two have to be equal:
//
//	sender                                   receiver
//	copy            ───────────────────────▶
//	                ◀───────────────────────  what it has
//	archive         ───────────────────────▶  writes it, removes what is not in it
//	                ◀───────────────────────  copied
//	   … until the sender is sealed: from then on no other pod can use the source …
//	copy, as before ───────────────────────▶
//	digest          ───────────────────────▶
//	   both read their volumes
//	                ◀───────────────────────  its digest
//	done            ───────────────────────▶
//	   … until the receiver is sealed: the move has noted that both are equal …
//	                                          removes its marker
//
// Either side can be interrupted at any moment and begin again: files that were written completely
// are kept. A connection that begins with a sealed sender begins with the digests, so that what may be
// noted as equal is not written. A destination to which something else wrote is never written to.
package volumecopy
