package session

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/time/rate"
)

// The first stream that the dialling side opens carries no gRPC but messages of
// the session itself, in both directions: a kind (1 byte), the length of the body
// (3 bytes), the body. Numbers are big endian. Kinds that are unknown are skipped.
const (
	controlStream = 1
	controlHead   = 4

	// kindProof proves the sender's identity again: a number that counts from 1 (4
	// bytes); the length of a signature (2 bytes) and the signature; then the
	// certificates, leaf first, each with its length (2 bytes) before it.
	kindProof = 1
	// kindProbe asks whether the other side is alive, and for its clock: 8 bytes, which are sent
	// back.
	kindProbe = 2
	// kindAnswer answers a probe: its 8 bytes, and the clock in milliseconds since 1970 (8 bytes).
	kindAnswer = 3
)

// control is one end of a control stream.
type control struct {
	stream *yamux.Stream
	mu     sync.Mutex
}

// send sends a message. It waits for the peer to take it, but not for long.
func (c *control) send(kind byte, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.stream.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.stream.Write(encodeMessage(kind, body))
	return err
}

func encodeMessage(kind byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, controlHead+len(body)), uint32(kind)<<24|uint32(len(body)))
	return append(b, body...)
}

// readMessage reads the next message.
func readMessage(r io.Reader) (kind byte, body []byte, err error) {
	var head [controlHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:]) & 0xffffff
	if size > maxControl {
		return 0, nil, &abuseError{What: fmt.Sprintf("a control message of %d bytes, the limit is %d", size, maxControl)}
	}
	body = make([]byte, size)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

// controlError returns why the control stream ended, or nil if the whole session ended, which has
// a reason of its own.
func (l *link) controlError(err error) error {
	if _, ok := errors.AsType[*abuseError](err); ok || errors.Is(err, errUntrusted) {
		return err
	}
	if l.mux.IsClosed() {
		return nil
	}
	return fmt.Errorf("control stream: %w", err)
}

// received is the state that is kept between messages of a peer.
type received struct {
	rate *rate.Limiter
	// proof is the number of the last proof.
	proof uint32
}

// readControl reads the control stream until it ends. It returns why the session has to
// end.
func (m *Manager) readControl(l *link) error {
	h := received{rate: rate.NewLimiter(controlRate, controlBurst)}
	for {
		kind, body, err := readMessage(l.control.stream)
		if err == nil {
			err = m.handle(l, &h, kind, body)
		}
		if err != nil {
			return l.controlError(err)
		}
		l.control.stream.Shrink() // the next message usually comes seconds later
	}
}

// handle handles a message. Its error ends the control stream, and with it the session.
func (m *Manager) handle(l *link, h *received, kind byte, body []byte) error {
	now := time.Now()
	if !h.rate.AllowN(now, 1) {
		return &abuseError{What: "too many control messages"}
	}
	l.mu.Lock()
	l.messageAt = now
	l.mu.Unlock()
	switch kind {
	case kindProof:
		p, err := decodeProof(body)
		if err != nil {
			return &abuseError{What: "a malformed proof of identity: " + err.Error()}
		}
		if p.number <= h.proof {
			return &abuseError{What: "a proof of identity was repeated"}
		}
		h.proof = p.number
		if err := m.proven(l, p); err != nil {
			return err
		}
	case kindProbe:
		if len(body) != 8 {
			return &abuseError{What: "a malformed probe"}
		}
		if err := l.control.send(kindAnswer, binary.BigEndian.AppendUint64(body, uint64(now.UnixMilli()))); err != nil {
			return err
		}
	case kindAnswer:
		if len(body) != 16 {
			return &abuseError{What: "a malformed answer"}
		}
		if l.answer(binary.BigEndian.Uint64(body), time.UnixMilli(int64(binary.BigEndian.Uint64(body[8:]))), now) {
			m.mu.Lock()
			m.notify(l.info.Peer)
			m.mu.Unlock()
		}
	}
	m.schedule(l)
	return nil
}

// proof proves a side's identity with another certificate than that of the handshake.
type proof struct {
	number    uint32
	signature []byte
	// chain has DER certificates, leaf first.
	chain [][]byte
}

func (p proof) encode() []byte {
	b := binary.BigEndian.AppendUint32(nil, p.number)
	b = appendPart(b, p.signature)
	for _, der := range p.chain {
		b = appendPart(b, der)
	}
	return b
}

func appendPart(b, part []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(part))), part...)
}

var errShort = errors.New("truncated")

func decodeProof(b []byte) (proof, error) {
	if len(b) < 4 {
		return proof{}, errShort
	}
	p := proof{number: binary.BigEndian.Uint32(b)}
	b = b[4:]
	for first := true; first || len(b) > 0; first = false {
		if len(b) < 2 {
			return proof{}, errShort
		}
		n := int(binary.BigEndian.Uint16(b))
		if b = b[2:]; len(b) < n {
			return proof{}, errShort
		}
		if first {
			p.signature = b[:n]
		} else {
			p.chain = append(p.chain, b[:n])
		}
		b = b[n:]
	}
	if len(p.chain) == 0 || len(p.chain) > maxProofCerts {
		return proof{}, fmt.Errorf("%d certificates, must be 1 to %d", len(p.chain), maxProofCerts)
	}
	return p, nil
}

// digest is what the leaf's key signs. The binding ties the proof to one TLS connection, the side
// to one direction of it, and the number to its place in the order, so that no proof can be used
// twice.
func (p proof) digest(binding []byte, byDialler bool) []byte {
	b := []byte("entente/1 proof of identity\x00")
	b = append(b, binding...)
	if byDialler {
		b = append(b, 'D')
	} else {
		b = append(b, 'L')
	}
	b = binary.BigEndian.AppendUint32(b, p.number)
	for _, der := range p.chain {
		b = appendPart(b, der)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// prove signs a proof with the key of a leaf.
func prove(svid *x509svid.SVID, number uint32, binding []byte, byDialler bool) (proof, error) {
	p := proof{number: number}
	for _, c := range svid.Certificates {
		p.chain = append(p.chain, c.Raw)
	}
	var err error
	if p.signature, err = svid.PrivateKey.Sign(rand.Reader, p.digest(binding, byDialler), crypto.SHA256); err != nil {
		return proof{}, fmt.Errorf("sign the proof of identity: %w", err)
	}
	return p, nil
}

// certificates returns the chain, after checking that the leaf's key signed the proof for this
// connection. It does not verify the chain or to which cluster it belongs.
func (p proof) certificates(binding []byte, byDialler bool) ([]*x509.Certificate, error) {
	chain, err := parseChain(p.chain)
	if err != nil {
		return nil, err
	}
	key, ok := chain[0].PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("its key is not ECDSA P-256")
	}
	if !ecdsa.VerifyASN1(key, p.digest(binding, byDialler), p.signature) {
		return nil, errors.New("its key did not sign it for this session")
	}
	return chain, nil
}

func parseChain(ders [][]byte) ([]*x509.Certificate, error) {
	chain := make([]*x509.Certificate, len(ders))
	for i, der := range ders {
		var err error
		if chain[i], err = x509.ParseCertificate(der); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
	}
	return chain, nil
}

// bindingOf returns the channel binding of a TLS connection (RFC 9266).
func bindingOf(conn *tls.Conn) ([]byte, error) {
	state := conn.ConnectionState()
	b, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
	if err != nil {
		return nil, fmt.Errorf("channel binding: %w", err)
	}
	return b, nil
}
