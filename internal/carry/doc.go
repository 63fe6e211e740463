// Package carry carries connections between agents that cannot dial each other through a third
// cluster that peers with both. The agent that dials calls the third one's, which calls the
// agent that is to be reached, each over the session that it has with the other: a Stream. On
// the two together the ends have a connection, on which they make a session of their own, which
// is encrypted and authenticated between them. So who carries reads and forges nothing, and the
// one that is reached believes nothing of what it says.
//
// A Carrier is what the third cluster has, a Listener what the one has that is reached; Join
// makes a connection of a Stream at either end.
package carry
