// Package wire converts between the messages of proto/entente/v1 and the values
// that the rest of Entente works with. It owns what both ends of a connection
// have to agree on beyond the messages: how an error becomes a status with a
// reason and back, and how large anything from outside may be.
//
// Every function that reads a message treats it as hostile: it checks each
// size, count and form itself, whether or not an interceptor validated the
// message before, because answers of a peer pass no interceptor. What it
// returns is canonical, and converting it back and forth changes nothing more.
//
// It holds no connection and, but for Exports, no state; server and client do.
// Exports reads one stream, of which messages say what changed: it keeps what was
// said before, within limits, and has the lifetime of the call.
package wire
