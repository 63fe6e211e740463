package session

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A peer whose session is up stops reading, while this side sends more than the kernel buffers:
// the session ends when a write or a ping took too long, and no other peer waits.
func TestTheSessionOfAPeerThatReadsNothingEndsAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	victim, silent, other := start(t), start(t, dialOnly), start(t, dialOnly)
	trust(t, victim, silent)
	trustEachOther(t, victim, other)
	other.SetPeers([]Peer{{ID: victim.id, Endpoints: []string{victim.addr}}})
	mustWho(t, other, victim)
	c := rawSession(t, silent, victim)
	eventually(t, "the session is up", up(victim, silent))
	began := time.Now()
	// Streams that it opens and on which this side then speaks: gRPC greets each.
	for i := range uint32(maxStreams - 1) {
		if _, err := c.Write(frame(yamuxWindow, yamuxSYN, 2*i+1, 0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	for up(victim, silent)() {
		if time.Since(began) > openTimeout+writeTimeout+patience/2 {
			t.Fatalf("after %s the session is still up", time.Since(began))
		}
		mustWho(t, other, victim)
		mustWho(t, victim, other)
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("ended after %.1fs: %v", time.Since(began).Seconds(), victim.Status(silent.id).Err)
	mustWho(t, other, victim)
}

// shown is a leaf of a node's own key with these URIs.
func shown(t *testing.T, by *node, uris ...string) *tls.Certificate {
	t.Helper()
	cert, err := by.source.ClientTLS(by.id, nil, "").GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	id := by.source.Identity()
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		leaf.URIs = append(leaf.URIs, uri)
	}
	signer := id.Signer()
	der, err := x509.CreateCertificate(rand.Reader, leaf, id.Root(), cert.Leaf.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, id.Root().Raw}, PrivateKey: cert.PrivateKey}
}

// A trusted cluster shows a certificate with the identity of another, or of both: it gets neither
// a session nor calls, and the other's session stays.
func TestATrustedPeerCannotBeAnother(t *testing.T) {
	t.Parallel()
	victim, other, liar := start(t), start(t, dialOnly), start(t, dialOnly)
	trustEachOther(t, victim, other)
	trustEachOther(t, victim, liar)
	other.SetPeers([]Peer{{ID: victim.id, Endpoints: []string{victim.addr}}})
	mustWho(t, other, victim)
	session := victim.Status(other.id).Session.Number
	for name, uris := range map[string][]string{
		"another's ID":                       {other.id.AgentURI()},
		"its own ID and another's":           {liar.id.AgentURI(), other.id.AgentURI()},
		"another's ID and its own":           {other.id.AgentURI(), liar.id.AgentURI()},
		"two SPIFFE IDs in its trust domain": {liar.id.AgentURI(), liar.id.TrustDomainURI() + "/admin"},
		"no ID":                              nil,
	} {
		for _, proto := range []string{protoSession, protoGRPC} {
			cert := shown(t, liar, uris...)
			cfg := liar.source.ClientTLS(victim.id, nil, "", proto)
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
			c, err := tls.Dial("tcp", victim.addr, cfg)
			if err != nil {
				continue // refused in the handshake
			}
			_ = c.SetReadDeadline(time.Now().Add(patience))
			// With TLS 1.3 a client learns that its certificate was refused at its first read.
			if proto == protoSession {
				if v, _, err := readPreface(c); err == nil && v == welcome {
					t.Errorf("%s: a session came up", name)
				}
			} else if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("%s: the connection is served: %v", name, err)
			}
			_ = c.Close()
		}
	}
	if s := victim.Status(other.id).Session; s == nil || s.Number != session {
		t.Errorf("the other's session became %+v", s)
	}
	if up(victim, liar)() {
		t.Error("the liar has a session")
	}
	mustWho(t, other, victim)
}

// h2Client connects as a cluster does that calls over HTTP/2 alone, from an
// address of this machine, and greets.
func h2Client(t *testing.T, from, to *node, address string) (*tls.Conn, error) {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: 10 * time.Second}
	c, err := tls.DialWithDialer(dialer, "tcp", to.addr, from.source.ClientTLS(to.id, nil, "", protoGRPC))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, 0, 0, 4, 0, 0, 0, 0, 0))
	return c, err
}

// lives reads all that comes on a connection, and reports whether it is still open after a while
// of silence.
func lives(c net.Conn, while time.Duration) bool {
	for {
		_ = c.SetReadDeadline(time.Now().Add(while))
		if _, err := c.Read(make([]byte, 4096)); err != nil {
			return isTimeout(err)
		}
	}
}

// answersPing reads frames until the answer to a ping, and reports whether it comes before the
// connection ends.
func answersPing(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(strangerLife / 2))
	frames := http2.NewFramer(io.Discard, c)
	for {
		f, err := frames.ReadFrame()
		if err != nil {
			return false
		}
		if ping, ok := f.(*http2.PingFrame); ok && ping.IsAck() {
			return true
		}
	}
}

// What a client that is not trusted sends is bounded, whatever it is; what a peer
// sends is not cut off by that.
func TestAStrangerThatSendsTooMuchIsCutOff(t *testing.T) {
	t.Parallel()
	victim, stranger, peer := start(t), start(t, dialOnly), start(t, dialOnly)
	trust(t, victim, peer)
	for _, caller := range []struct {
		name  string
		from  *node
		lives bool
	}{{"a stranger", stranger, false}, {"a peer", peer, true}} {
		c, err := h2Client(t, caller.from, victim, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		// Frames of a kind that HTTP/2 does not know are to be ignored.
		junk := append([]byte{0, 0x40, 0, 0xf0, 0, 0, 0, 0, 0}, make([]byte, 16<<10)...)
		for range strangerBytes/len(junk) + 4 {
			if _, err := c.Write(junk); err != nil {
				break
			}
		}
		// The answer to a ping shows that all before it was read.
		if _, err := c.Write(append([]byte{0, 0, 8, byte(http2.FramePing), 0, 0, 0, 0, 0}, "received"...)); err != nil && caller.lives {
			t.Error(err)
		}
		if answersPing(c) != caller.lives {
			t.Errorf("%s is cut off: %t", caller.name, caller.lives)
		}
	}
}

// One address gets only some of the places for strangers.
func TestOneAddressLeavesOtherStrangersTheirPlaces(t *testing.T) {
	t.Parallel()
	victim, stranger := start(t), start(t, dialOnly)
	if c, err := h2Client(t, stranger, victim, "127.0.0.2"); err != nil {
		t.Skipf("this machine has one loopback address: %v", err)
	} else {
		_ = c.Close()
	}
	var all []net.Conn
	for range maxStrangersPerIP + 8 {
		if c, err := h2Client(t, stranger, victim, "127.0.0.1"); err == nil {
			all = append(all, c)
		}
	}
	kept := 0
	for _, c := range all {
		if lives(c, 500*time.Millisecond) {
			kept++
		}
	}
	if kept != maxStrangersPerIP {
		t.Errorf("%d connections of one address are kept, want %d", kept, maxStrangersPerIP)
	}
	c, err := h2Client(t, stranger, victim, "127.0.0.2")
	if err != nil || !lives(c, 500*time.Millisecond) {
		t.Errorf("another address has no place: %v", err)
	}
}

// flood opens connections to a node from an address of this machine, and sends nothing.
func flood(t *testing.T, to *node, address string, n int) {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: 10 * time.Second}
	for range n {
		c, err := dialer.Dial("tcp", to.addr)
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Skipf("this machine has one loopback address: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

func TestFourAddressesWithUnfinishedHandshakesKeepNobodyOut(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	trust(t, victim, peer)
	for _, address := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		flood(t, victim, address, maxHandshakesPerIP)
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.6")}, Timeout: 10 * time.Second}
	c, err := tls.DialWithDialer(dialer, "tcp", victim.addr, peer.source.ClientTLS(victim.id, nil, "", protoSession))
	if err != nil {
		t.Fatalf("a fifth address: %v", err)
	}
	defer c.Close()
	if v, _, err := readPreface(c); err != nil || v != welcome {
		t.Errorf("a fifth address: verdict %d, %v", v, err)
	}
}

func TestFourAddressesWithConnectionsOfStrangersKeepNoStrangerOut(t *testing.T) {
	t.Parallel()
	victim, stranger := start(t), start(t, dialOnly)
	var all []net.Conn
	for _, address := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		for range maxStrangersPerIP {
			c, err := h2Client(t, stranger, victim, address)
			if err != nil {
				t.Skipf("this machine has one loopback address: %v", err)
			}
			all = append(all, c)
		}
	}
	c, err := h2Client(t, stranger, victim, "127.0.0.6")
	if err != nil || !lives(c, 500*time.Millisecond) {
		t.Errorf("a fifth address has no place: %v", err)
	}
	if !answersPing(withPing(t, c)) {
		t.Error("the fifth address is not served")
	}
	kept := 0
	for _, c := range all {
		if lives(c, 50*time.Millisecond) {
			kept++
		}
	}
	if kept != maxStrangers-1 {
		t.Errorf("%d of the others are kept, want %d", kept, maxStrangers-1)
	}
}

// withPing sends an HTTP/2 ping on a connection.
func withPing(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	if _, err := c.Write(append([]byte{0, 0, 8, byte(http2.FramePing), 0, 0, 0, 0, 0}, "received"...)); err != nil {
		t.Error(err)
	}
	return c
}
