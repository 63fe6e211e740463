// Package carry carries connections between agents that cannot dial each other through a third
// cluster that peers with both. The agent that dials calls the third cluster's agent, which calls the
// agent to reach, each over the session that it has with the other: a Stream. Over
// the two streams the ends have a connection, on which they make a session of their own, which
// is encrypted and authenticated between them. So the third cluster can neither read nor forge it, and
// the agent that is reached does not rely on what the third one says.
//
// The third cluster has a Carrier, the cluster that is reached has a Listener; Join
// makes a connection from a Stream at either end.
package carry
