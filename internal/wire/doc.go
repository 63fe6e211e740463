// Package wire converts between the messages of proto/entente/v1 and the values
// that the rest of Entente works with. It owns what both ends of a connection
// have to agree on beyond the messages: how an error becomes a status with a
// reason and back, and how large anything from outside may be.
//
// Every function that reads a message treats it as hostile: it checks each
// size, count and form itself, whether or not an interceptor validated the
// message before, because responses of a peer pass no interceptor. What it returns is canonical:
// converting it to a message and back changes nothing.
//
// It has no connection and, except in Exports, no state; server and client have. Exports reads
// one stream of changes: it keeps what it received before, within limits, for as long as the
// call.
package wire
