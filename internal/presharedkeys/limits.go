package presharedkeys

import "time"

const (
	// keyLeast is how old a key has to be before it is replaced because the peer wants that.
	keyLeast = time.Minute
	// keyPatience is how long to wait for gateways whose fabrics are silent, from when they became so or the
	// replacement of a key began, before a key is replaced, or the previous one is dropped. If such a gateway
	// carries traffic it has no tunnel from then on.
	keyPatience = 24 * time.Hour
)
