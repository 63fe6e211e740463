package datagrams

import (
	"bufio"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A link is a connection from a gateway to its cluster's agent, for the datagrams of one peer.
// Each proves to the other that it knows the tunnel's preshared key, which only the agent and the
// fabric can read. Numbers are big endian.
//
//	agent    0  4  "entd"
//	         4  1  version, 1
//	         5 32  nonce
//	gateway  0 32  its WireGuard public key
//	        32 32  nonce
//	        64  1  length of the peer's cluster ID, 1 to 64
//	        65  …  the ID
//	         … 32  HMAC-SHA256 of a key of the peer, over "gateway", the agent's nonce and all of this
//	agent    0  1  0: datagrams follow; 1: refused
//	         1 32  HMAC-SHA256 of that key, over "agent", the gateway's nonce and the agent's; of 0 only
//
// Then frames follow in both directions:
//
//	0  8  tag of the peer's gateway
//	8  2  length of the datagram; 0 is a keepalive
//	10 …  the datagram
const (
	linkMagic       = "entd\x01"
	nonceLen        = 32
	macLen          = sha256.Size
	maxPeerID       = 64
	linkHead        = 10
	responseOK      = 0
	responseRefused = 1
)

// Key proves that an end of a link belongs to this cluster.
type Key [32]byte

// KeyFrom derives the key of a peer's links from the preshared key of the tunnel to it.
func KeyFrom(preshared [32]byte) (Key, error) {
	b, err := hkdf.Key(sha256.New, preshared[:], nil, "entente datagrams v1", len(Key{}))
	if err != nil {
		return Key{}, fmt.Errorf("derive the key of a link: %w", err)
	}
	return Key(b), nil
}

// String keeps keys out of logs.
func (Key) String() string { return "Key(hidden)" }

// GoString does the same for %#v.
func (k Key) GoString() string { return k.String() }

var (
	errNotHub   = errors.New("the other end is not an agent of this version")
	errRefused  = errors.New("the agent refuses: it has another preshared key for the peer, does not relay for it, or does not know this node as a gateway; it accepts once both have read the same objects")
	errNotAgent = errors.New("the other end does not know the tunnel's preshared key")
	errRequest  = errors.New("the request is not of a gateway of this cluster")
)

// request is the request of a gateway to an agent.
type request struct {
	gateway [32]byte
	peer    string
}

func mac(key Key, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key[:])
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// ask asks the agent at the other end of a connection to carry datagrams.
func ask(conn net.Conn, r request, key Key) error {
	if len(r.peer) == 0 || len(r.peer) > maxPeerID {
		return fmt.Errorf("cluster ID of %d bytes, the limit is %d", len(r.peer), maxPeerID)
	}
	if err := conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	hello := make([]byte, len(linkMagic)+nonceLen)
	if _, err := io.ReadFull(conn, hello); err != nil {
		return fmt.Errorf("read the agent's hello: %w", err)
	}
	if string(hello[:len(linkMagic)]) != linkMagic {
		return errNotHub
	}
	theirs, own := hello[len(linkMagic):], make([]byte, nonceLen)
	_, _ = rand.Read(own) // never fails
	message := append(append(append([]byte(nil), r.gateway[:]...), own...), byte(len(r.peer)))
	message = append(message, r.peer...)
	if _, err := conn.Write(append(message, mac(key, []byte("gateway"), theirs, message)...)); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	var response [1 + macLen]byte
	if _, err := io.ReadFull(conn, response[:1]); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	switch response[0] {
	case responseOK:
	case responseRefused:
		return errRefused
	default:
		return errNotHub
	}
	if _, err := io.ReadFull(conn, response[1:]); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if !hmac.Equal(response[1:], mac(key, []byte("agent"), own, theirs)) {
		return errNotAgent
	}
	return conn.SetDeadline(time.Time{})
}

// respond reads and answers the request of a gateway. keys returns the keys of a peer for which
// datagrams are carried, each of which is accepted: while the preshared key is replaced, the agent and the
// gateway may read the new one at different times. isGateway reports whether a gateway of this cluster has a public key.
func respond(conn io.ReadWriter, keys func(peer string) []Key, isGateway func(publicKey [32]byte) bool) (request, error) {
	hello := append([]byte(linkMagic), make([]byte, nonceLen)...)
	nonce := hello[len(linkMagic):]
	_, _ = rand.Read(nonce) // never fails
	if _, err := conn.Write(hello); err != nil {
		return request{}, err
	}
	r, theirs, key, err := readRequest(conn, nonce, keys)
	if err != nil || !isGateway(r.gateway) {
		_, _ = conn.Write([]byte{responseRefused})
		return request{}, errors.Join(errRequest, err)
	}
	_, err = conn.Write(append([]byte{responseOK}, mac(key, []byte("agent"), theirs, nonce)...))
	return r, err
}

func readRequest(conn io.Reader, nonce []byte, keys func(peer string) []Key) (r request, theirs []byte, key Key, err error) {
	const head = 32 + nonceLen + 1
	message := make([]byte, head, head+maxPeerID)
	if _, err := io.ReadFull(conn, message); err != nil {
		return r, nil, key, err
	}
	n := int(message[head-1])
	if n == 0 || n > maxPeerID {
		return r, nil, key, fmt.Errorf("cluster ID of %d bytes", n)
	}
	message = message[:head+n]
	if _, err := io.ReadFull(conn, message[head:]); err != nil {
		return r, nil, key, err
	}
	var proof [macLen]byte
	if _, err := io.ReadFull(conn, proof[:]); err != nil {
		return r, nil, key, err
	}
	r = request{gateway: [32]byte(message), peer: string(message[head:])}
	key, ok := provenBy(proof[:], keys(r.peer), []byte("gateway"), nonce, message)
	if !ok {
		return r, nil, key, errors.New("the proof does not fit")
	}
	return r, message[32 : 32+nonceLen], key, nil
}

// provenBy returns the one of some keys by which a proof was made. It takes as long for an unknown peer as for
// a wrong key.
func provenBy(proof []byte, keys []Key, parts ...[]byte) (by Key, ok bool) {
	for i := range maxKeys {
		var key Key
		if i < len(keys) {
			key = keys[i]
		}
		if hmac.Equal(proof, mac(key, parts...)) && i < len(keys) {
			by, ok = key, true
		}
	}
	return by, ok
}

// readLink reads frames of a link until it ends, or until none arrives for aliveTimeout.
// take must not keep the datagram.
func readLink(conn net.Conn, take func(Tag, []byte)) error {
	in := bufio.NewReaderSize(conn, MaxBatch)
	var head [linkHead]byte
	datagram := make([]byte, MaxDatagram)
	for {
		// A deadline for each frame would be a system call for each.
		if in.Buffered() < linkHead {
			if err := conn.SetReadDeadline(time.Now().Add(aliveTimeout)); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint16(head[8:]))
		if n > MaxDatagram {
			return fmt.Errorf("a datagram of %d bytes, the limit is %d", n, MaxDatagram)
		}
		if n == 0 {
			continue
		}
		if _, err := io.ReadFull(in, datagram[:n]); err != nil {
			return err
		}
		take(Tag(head[:8]), datagram[:n])
	}
}

// writeLink writes the datagrams of a queue as frames, with the tags that tag returns, and keepalives,
// until ctx or the link ends.
func writeLink(ctx context.Context, conn net.Conn, q *queue, tag func(item) Tag) error {
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	var out []byte
	for ctx.Err() == nil {
		out = out[:0]
		if q.wait(ctx, alive.C) {
			for _, i := range q.take(time.Now(), MaxBatch) {
				t := tag(i)
				out = append(out, t[:]...)
				out = binary.BigEndian.AppendUint16(out, uint16(len(i.data)))
				out = append(out, i.data...)
			}
			if len(out) == 0 {
				continue // all of it had waited too long
			}
		} else {
			out = append(out, make([]byte, linkHead)...)
		}
		if err := conn.SetWriteDeadline(time.Now().Add(aliveTimeout)); err != nil {
			return err
		}
		if _, err := conn.Write(out); err != nil {
			return err
		}
	}
	return ctx.Err()
}
