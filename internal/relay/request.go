package relay

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// Before a session, an agent asks its gateway's outbound relay for a peer, and an inbound relay
// announces to an agent from which peer a connection comes. The side that dials proves that it knows the
// peer's key in this cluster, which only the agent and the fabric can read. The side that answers proves
// nothing: the session does.
//
//	answers  0  4  "entr"
//	         4  1  version, 1
//	         5 32  nonce
//	dials    0  1  length of the peer's cluster ID, 1 to 64
//	         1  …  the ID
//	         … 32  HMAC-SHA256 of the key, over nonce, length and ID
//	answers  0  1  0: what follows is the session; 1: refused; 2: no gateway of the peer answers
const (
	magic           = "entr\x01"
	nonceLen        = 32
	macLen          = sha256.Size
	responseOK      = 0
	responseRefused = 1
	responseDown    = 2
)

// Key proves that a request comes from the agent or the fabric of the same cluster.
type Key [32]byte

// Direction is the direction that a key is for: a proof for one is invalid for the other.
type Direction string

const (
	// ToPeer is from the agent by a relay to the peer.
	ToPeer Direction = "to peer"
	// ToAgent is from the peer by a relay to the agent.
	ToAgent Direction = "to agent"
)

// KeyFrom derives a key of a peer from the preshared key of the tunnel to it.
func KeyFrom(preshared [32]byte, d Direction) (Key, error) {
	b, err := hkdf.Key(sha256.New, preshared[:], nil, "entente relay v1 "+string(d), len(Key{}))
	if err != nil {
		return Key{}, fmt.Errorf("derive a relay's key: %w", err)
	}
	return Key(b), nil
}

// KeysFrom derives the keys of a peer from those preshared keys of the tunnel to it that are not zero. It ignores
// any beyond maxKeys.
func KeysFrom(d Direction, preshared ...[32]byte) ([]Key, error) {
	var out []Key
	for _, p := range preshared {
		if p == [32]byte{} || len(out) == maxKeys {
			continue
		}
		key, err := KeyFrom(p, d)
		if err != nil {
			return nil, err
		}
		out = append(out, key)
	}
	return out, nil
}

// String keeps keys out of logs.
func (Key) String() string { return "Key(hidden)" }

// GoString does the same for %#v.
func (k Key) GoString() string { return k.String() }

var (
	errNotRelay = errors.New("the other end is not a relay of this version")
	errRefused  = errors.New("the relay refuses: the fabric of that node has another key for the peer, or no in-band tunnel to it; it accepts once it has read both")
	errDown     = errors.New("the relay reaches no gateway of the peer: see the paths to it in entente network status")
	errRequest  = errors.New("the request is not from this cluster's own agent or fabric")
)

// Ask requests a peer from the side that accepted a connection, and proves the right to do so. After it
// has returned nil the connection belongs to the session, of which it has read no byte.
func Ask(conn net.Conn, peer string, key Key, patience time.Duration) error {
	if len(peer) == 0 || len(peer) > maxPeerLen {
		return fmt.Errorf("cluster ID of %d bytes, the limit is %d", len(peer), maxPeerLen)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	hello := make([]byte, len(magic)+nonceLen)
	if _, err := io.ReadFull(conn, hello); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if string(hello[:len(magic)]) != magic {
		return errNotRelay
	}
	request := append([]byte{byte(len(peer))}, peer...)
	if _, err := conn.Write(append(request, proof(key, hello[len(magic):], request)...)); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	var response [1]byte
	if _, err := io.ReadFull(conn, response[:]); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	switch response[0] {
	case responseOK:
		return conn.SetDeadline(time.Time{})
	case responseRefused:
		return errRefused
	case responseDown:
		return errDown
	}
	return errNotRelay
}

// Serve reads a request, dials its peer and answers with the result. It is the Open of
// an outbound relay. keys returns the keys of a peer whose tunnel is in-band, each of which is accepted: while the
// preshared key is replaced, the agent and the fabric may read the new one at different times.
func Serve(conn net.Conn, keys func(peer string) []Key, dial func(peer string) (net.Conn, netip.Addr, error)) (End, error) {
	peer, err := readRequest(conn, keys)
	if err != nil {
		_, _ = conn.Write([]byte{responseRefused})
		return End{}, err
	}
	other, gateway, err := dial(peer)
	if err != nil {
		_, _ = conn.Write([]byte{responseDown})
		return End{}, err
	}
	if _, err := conn.Write([]byte{responseOK}); err != nil {
		_ = other.Close()
		return End{}, err
	}
	return End{Conn: other, Way: Way{Peer: peer, Gateway: gateway}}, nil
}

func readRequest(conn io.ReadWriter, keys func(peer string) []Key) (string, error) {
	hello := append([]byte(magic), make([]byte, nonceLen)...)
	nonce := hello[len(magic):]
	_, _ = rand.Read(nonce) // never fails
	if _, err := conn.Write(hello); err != nil {
		return "", err
	}
	var length [1]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return "", err
	}
	if length[0] == 0 || length[0] > maxPeerLen {
		return "", errRequest
	}
	rest := make([]byte, int(length[0])+macLen)
	if _, err := io.ReadFull(conn, rest); err != nil {
		return "", err
	}
	peer := string(rest[:length[0]])
	if !proves(rest[length[0]:], keys(peer), nonce, append(length[:], peer...)) {
		return "", errRequest
	}
	return peer, nil
}

// proves reports whether a proof was made by one of some keys. It takes as long for an unknown peer as for a wrong
// key.
func proves(sent []byte, keys []Key, nonce, request []byte) (ok bool) {
	for i := range maxKeys {
		var key Key
		if i < len(keys) {
			key = keys[i]
		}
		if hmac.Equal(sent, proof(key, nonce, request)) && i < len(keys) {
			ok = true
		}
	}
	return ok
}

func proof(key Key, nonce, request []byte) []byte {
	h := hmac.New(sha256.New, key[:])
	h.Write(nonce)
	h.Write(request)
	return h.Sum(nil)
}
