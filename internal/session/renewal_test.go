package session

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

func leafLife(d time.Duration) nodeOption {
	return func(_ *Config, s *identity.SourceConfig) { s.LeafLife = d }
}

// load calls both ways, 50 times a second each, and keeps a stream open each way,
// until it is stopped. It counts what fails.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu              sync.Mutex
	calls, messages int
	failures        []error
}

func startLoad(t *testing.T, a, b *node) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel}
	count := func(calls, messages int, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls, l.messages = l.calls+calls, l.messages+messages
		if err != nil {
			l.failures = append(l.failures, err)
		}
	}
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		l.wg.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if _, err := who(ctx, pair[0], pair[1]); ctx.Err() == nil {
					count(1, 0, err)
				}
			}
		})
		l.wg.Go(func() {
			stream, err := pair[0].Conn(pair[1].id).NewStream(ctx, &testService.Streams[0], "/test.Test/Tail")
			if err == nil {
				err = stream.SendMsg(wrapperspb.String(""))
			}
			for err == nil {
				if err = stream.RecvMsg(new(wrapperspb.StringValue)); err == nil {
					count(0, 1, nil)
				}
			}
			if ctx.Err() == nil {
				count(0, 0, fmt.Errorf("stream: %w", err))
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		l.wg.Wait()
	})
	return l
}

// more waits until calls and streams carried more.
func (l *load) more(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	calls, messages := l.calls+20, l.messages+20
	l.mu.Unlock()
	eventually(t, "more calls and messages", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.calls >= calls && l.messages >= messages || len(l.failures) > 0
	})
}

// end stops the load and fails the test if a call or a stream failed.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	t.Logf("%d calls, %d stream messages, %d failures", l.calls, l.messages, len(l.failures))
	for i, err := range l.failures {
		if i == 5 {
			break
		}
		t.Errorf("failure %d: %v", i+1, err)
	}
	if l.calls == 0 || l.messages == 0 {
		t.Error("nothing was called")
	}
}

func TestSessionOutlivesItsCertificatesUnderCalls(t *testing.T) {
	t.Parallel()
	const life = 4 * time.Second
	a, b := start(t, leafLife(life), dialOnly), start(t, leafLife(life))
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	mustWho(t, a, b)
	first := a.Status(b.id).Session
	serial, _ := a.source.Leaf()
	l := startLoad(t, a, b)
	for end := first.PeerNotAfter.Add(expiryGrace + life); time.Now().Before(end); {
		// New connections too, each with the leaf of its moment.
		cc := dialDirect(t, a, b)
		if out, err := whoDirect(t, cc); err != nil || !strings.Contains(out, "true") {
			t.Fatalf("new connection: %q, %v", out, err)
		}
		_ = cc.Close()
		time.Sleep(200 * time.Millisecond)
	}
	l.end(t)
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		s := pair[0].Status(pair[1].id).Session
		if s == nil || s.Number != 1 {
			t.Fatalf("the session became %+v", s)
		}
		if !s.PeerNotAfter.After(first.PeerNotAfter.Add(life)) {
			t.Errorf("the peer's certificate ended at %s, and it is %s", s.PeerNotAfter, time.Now())
		}
	}
	if now, notAfter := a.source.Leaf(); now == serial {
		t.Errorf("leaf %s, until %s: not renewed", now, notAfter)
	}
}

func rolled(t *testing.T, n *node, overlap time.Duration) *identity.Identity {
	t.Helper()
	next, err := n.source.Identity().Rollover(time.Now(), overlap)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func TestRolloverUnderCalls(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	mustWho(t, a, b)
	l := startLoad(t, a, b)
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		mover, other := pair[0], pair[1]
		next := rolled(t, mover, 4*time.Second)
		if err := mover.source.SetIdentity(next); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the peer showed a leaf of its new key", func() bool {
			return other.link(mover.id).shownBy(next)
		})
		// The peer's word comes some time later, and the end of the overlap.
		l.more(t)
		trust(t, other, mover)
		if n := len(mover.source.Identity().TrustBundle().Roots); n != 2 {
			t.Fatalf("%d roots in the overlap", n)
		}
		eventually(t, "the overlap is over", func() bool { return len(mover.source.Identity().TrustBundle().Roots) == 1 })
		trust(t, other, mover)
		l.more(t)
	}
	l.end(t)
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		if s := pair[0].Status(pair[1].id).Session; s == nil || s.Number != 1 {
			t.Errorf("the session became %+v", s)
		}
	}
}

// shownBy reports whether the last leaf that the peer showed is of an identity's newest key.
func (l *link) shownBy(i *identity.Identity) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	chain, err := parseChain(l.chain)
	return err == nil && chain[0].CheckSignatureFrom(i.Root()) == nil
}

func TestPeerThatWasAwayDuringRollovers(t *testing.T) {
	t.Parallel()
	id := newIdentity(t)
	a := start(t)
	known := a.source.Identity().TrustBundle()
	for range 3 { // while the peer is away; each with its overlap over
		if err := a.source.SetIdentity(rolled(t, a, 0)); err != nil {
			t.Fatal(err)
		}
	}
	b := startAs(t, id, dialOnly)
	trust(t, a, b)
	if err := b.bundles.Trust(a.id, known); err != nil {
		t.Fatal(err)
	}
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	mustWho(t, b, a)
	mustWho(t, a, b)
	// It learns the new bundle, and the session stays.
	next := a.source.Identity().TrustBundle()
	if err := identity.Supersedes(known, next); err != nil {
		t.Fatal(err)
	}
	trust(t, b, a)
	mustWho(t, b, a)
	if s := b.Status(a.id).Session; s == nil || s.Number != 1 {
		t.Errorf("the session became %+v", s)
	}
}

// After the overlap of a rollover the old key vouches for nothing, not even on
// what is open already.
func TestConnectionsUnderASucceededKeyAreCut(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t, dialOnly)
	trustEachOther(t, a, b)
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	mustWho(t, b, a)
	direct := dialDirect(t, b, a)
	if _, err := whoDirect(t, direct); err != nil {
		t.Fatal(err)
	}
	// b goes on with the old key, as a thief of it would.
	next := rolled(t, b, time.Hour)
	if err := a.bundles.Trust(b.id, next.TrustBundle()); err != nil {
		t.Fatal(err)
	}
	mustWho(t, b, a) // the overlap
	settled := rolled(t, b, 0)
	if err := a.bundles.Trust(b.id, settled.TrustBundle()); err != nil {
		t.Fatal(err)
	}
	if s := a.Status(b.id); s.Session != nil || !strings.Contains(s.Err.Error(), "no longer covers") {
		t.Errorf("status %+v", s)
	}
	eventually(t, "the h2 connection is cut, too", func() bool {
		out, err := whoDirect(t, direct)
		return err != nil || strings.Contains(out, "false")
	})
	eventually(t, "it does not come back", func() bool { return b.Status(a.id).Err != nil && !up(a, b)() })
}

func TestPeerThatDoesNotRenewIsCut(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly, leafLife(2*time.Second))
	trust(t, victim, peer)
	c := rawSession(t, peer, victim)
	mux := overYamux(t, c) // which answers pings
	eventually(t, "the session is up", up(victim, peer))
	end := victim.Status(peer.id).Session.PeerNotAfter
	direct, err := tls.Dial("tcp", victim.addr, peer.source.ClientTLS(victim.id, nil, "", protoGRPC))
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	select {
	case <-mux.CloseChan():
	case <-time.After(patience):
		t.Fatal("the session was not cut")
	}
	if early := time.Until(end.Add(expiryGrace)); early > 100*time.Millisecond || early < -10*time.Second {
		t.Errorf("cut %s before its time", early)
	}
	eventually(t, "the session is gone", func() bool { return !up(victim, peer)() })
	var expired *expiredError
	if err := victim.Status(peer.id).Err; !errors.As(err, &expired) || !expired.NotAfter.Equal(end) || expired.Refused != nil {
		t.Errorf("status says %v", err)
	}
	_ = direct.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, direct); isTimeout(err) {
		t.Error("the h2 connection outlives its certificate")
	}
}

// overYamux is the dialling side's end of a session, by hand.
func overYamux(t *testing.T, c *tls.Conn) *yamux.Session {
	t.Helper()
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	mux, err := yamux.Client(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mux.Close() })
	return mux
}

// hostile is a peer's end of a session with its control stream.
type hostile struct {
	t       *testing.T
	mux     *yamux.Session
	stream  *yamux.Stream
	binding []byte
}

func openControl(t *testing.T, from, to *node) *hostile {
	t.Helper()
	c := rawSession(t, from, to)
	binding, err := bindingOf(c)
	if err != nil {
		t.Fatal(err)
	}
	mux := overYamux(t, c)
	stream, err := mux.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	return &hostile{t, mux, stream, binding}
}

func (h *hostile) send(kind byte, body []byte) {
	h.t.Helper()
	if _, err := h.stream.Write(encodeMessage(kind, body)); err != nil {
		h.t.Logf("send: %v", err) // it may be cut already
	}
}

func (h *hostile) proof(by *identity.Source, number uint32, binding []byte, byDialler bool) proof {
	h.t.Helper()
	svid, err := by.GetX509SVID()
	if err != nil {
		h.t.Fatal(err)
	}
	p, err := prove(svid, number, binding, byDialler)
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// victimsProof waits for the other side's first proof.
func (h *hostile) victimsProof() []byte {
	h.t.Helper()
	_ = h.stream.SetReadDeadline(time.Now().Add(patience))
	for {
		kind, body, err := readMessage(h.stream)
		if err != nil {
			h.t.Fatal(err)
		}
		if kind == kindProof {
			return body
		}
	}
}

func TestHostileProofsEndTheSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(h *hostile, victim, peer, other *node)
		want string
	}{
		{"another trusted cluster's leaf, by its own key", func(h *hostile, _, _, other *node) {
			h.send(kindProof, h.proof(other.source, 1, h.binding, true).encode())
		}, "another cluster"},
		{"another cluster's certificates, signed by the own key", func(h *hostile, _, peer, other *node) {
			stolen := h.proof(other.source, 1, h.binding, true)
			stolen.signature = h.proof(peer.source, 1, h.binding, true).signature
			h.send(kindProof, stolen.encode())
		}, "did not sign"},
		{"one of another connection", func(h *hostile, victim, peer, _ *node) {
			conn, err := tls.Dial("tcp", victim.addr, peer.source.ClientTLS(victim.id, nil, "", protoGRPC))
			if err != nil {
				h.t.Fatal(err)
			}
			defer conn.Close()
			elsewhere, err := bindingOf(conn)
			if err != nil {
				h.t.Fatal(err)
			}
			h.send(kindProof, h.proof(peer.source, 1, elsewhere, true).encode())
		}, "did not sign"},
		{"the victim's own, sent back", func(h *hostile, _, _, _ *node) {
			h.send(kindProof, h.victimsProof())
		}, "did not sign"},
		{"one made for the other direction", func(h *hostile, _, peer, _ *node) {
			h.send(kindProof, h.proof(peer.source, 1, h.binding, false).encode())
		}, "did not sign"},
		{"the same twice", func(h *hostile, _, peer, _ *node) {
			p := h.proof(peer.source, 1, h.binding, true).encode()
			h.send(kindProof, p)
			h.send(kindProof, p)
		}, "repeated"},
		{"an earlier one", func(h *hostile, _, peer, _ *node) {
			h.send(kindProof, h.proof(peer.source, 7, h.binding, true).encode())
			h.send(kindProof, h.proof(peer.source, 6, h.binding, true).encode())
		}, "repeated"},
		{"an earlier one under a new number", func(h *hostile, _, peer, _ *node) {
			p := h.proof(peer.source, 1, h.binding, true)
			h.send(kindProof, p.encode())
			p.number = 2
			h.send(kindProof, p.encode())
		}, "did not sign"},
		{"a signed one whose chain was changed", func(h *hostile, _, peer, _ *node) {
			p := h.proof(peer.source, 1, h.binding, true)
			p.chain = p.chain[:1]
			h.send(kindProof, p.encode())
		}, "did not sign"},
		{"what is not a certificate", func(h *hostile, _, _, _ *node) {
			h.send(kindProof, proof{number: 1, signature: []byte("x"), chain: [][]byte{[]byte("x")}}.encode())
		}, "certificate 1"},
		{"no certificate", func(h *hostile, _, _, _ *node) {
			h.send(kindProof, proof{number: 1, signature: []byte("x")}.encode())
		}, "0 certificates"},
		{"nothing", func(h *hostile, _, _, _ *node) { h.send(kindProof, nil) }, "malformed proof"},
		{"a huge message", func(h *hostile, _, _, _ *node) { h.send(9, make([]byte, maxControl+1)) }, "a control message of"},
		{"a flood of messages", func(h *hostile, _, _, _ *node) {
			for range controlBurst + 50 {
				h.send(kindProbe, make([]byte, 8))
			}
		}, "too many control messages"},
		{"a malformed probe", func(h *hostile, _, _, _ *node) { h.send(kindProbe, make([]byte, 7)) }, "a malformed probe"},
		{"a malformed answer", func(h *hostile, _, _, _ *node) { h.send(kindAnswer, make([]byte, 8)) }, "a malformed answer"},
		{"the end of the control stream", func(h *hostile, _, _, _ *node) { _ = h.stream.Close() }, "control stream"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			victim, peer, other := start(t), start(t, dialOnly), start(t, dialOnly)
			trust(t, victim, peer)
			trust(t, victim, other)
			h := openControl(t, peer, victim)
			eventually(t, "the session is up", up(victim, peer))
			tt.do(h, victim, peer, other)
			if err := closed(t, victim, peer); !strings.Contains(err.Error(), tt.want) {
				t.Errorf("status says %v, want %q", err, tt.want)
			}
		})
	}
}

func TestControlStreamIsOpenedOnce(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	trust(t, victim, peer)
	c := rawSession(t, peer, victim)
	open, reset := frame(yamuxWindow, yamuxSYN, controlStream, 0), frame(yamuxWindow, 8, controlStream, 0)
	for _, b := range [][]byte{open, reset, open} {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := closed(t, victim, peer); !strings.Contains(err.Error(), "control stream") {
		t.Errorf("status says %v", err)
	}
}

func TestUnknownControlMessagesAreSkipped(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	trust(t, victim, peer)
	h := openControl(t, peer, victim)
	eventually(t, "the session is up", up(victim, peer))
	h.send(200, []byte("what is to come"))
	h.send(kindProof, h.proof(peer.source, 1, h.binding, true).encode())
	h.send(kindProbe, []byte("question"))
	_ = h.stream.SetReadDeadline(time.Now().Add(patience))
	for {
		kind, body, err := readMessage(h.stream)
		if err != nil {
			t.Fatal(err)
		}
		if kind == kindAnswer {
			if len(body) != 16 || string(body[:8]) != "question" {
				t.Errorf("answer %q", body)
			}
			break
		}
	}
	if !up(victim, peer)() {
		t.Errorf("the session ended: %v", victim.Status(peer.id).Err)
	}
}

// svidOf is a TLS certificate in the form that prove wants.
func svidOf(t *testing.T, cert *tls.Certificate) *x509svid.SVID {
	t.Helper()
	svid := &x509svid.SVID{}
	for _, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		svid.Certificates = append(svid.Certificates, c)
	}
	var ok bool
	if svid.PrivateKey, ok = cert.PrivateKey.(crypto.Signer); !ok {
		t.Fatal("the key cannot sign")
	}
	return svid
}

// forged is a leaf with a peer's SPIFFE ID that a key signed which is not the
// peer's.
func forged(t *testing.T, peer *node) *tls.Certificate {
	t.Helper()
	uri, err := url.Parse(peer.id.AgentURI())
	if err != nil {
		t.Fatal(err)
	}
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: peer.source.Identity().Root().Subject, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), URIs: []*url.URL{uri}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, root, keys[1].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, keys[0].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, rootDER}, PrivateKey: keys[1]}
}

// A proof that is the peer's own but does not verify neither ends the session nor
// makes it last.
func TestProofThatDoesNotVerifyChangesNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		by   func(t *testing.T, peer *node) *tls.Certificate
		want func(error) bool
	}{
		{"an expired leaf", func(t *testing.T, peer *node) *tls.Certificate {
			t.Helper()
			return expiredLeaf(t, peer.source)
		}, func(err error) bool { _, ok := errors.AsType[*identity.TimeError](err); return ok }},
		{"a leaf of a key that does not follow from the known one", forged, func(err error) bool { return strings.Contains(err.Error(), "unknown authority") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			victim, peer := start(t), start(t, dialOnly, leafLife(4*time.Second))
			paced(victim, quietAfter, patience) // for the peer answers nothing
			trust(t, victim, peer)
			bad := tt.by(t, peer)
			h := openControl(t, peer, victim)
			eventually(t, "the session is up", up(victim, peer))
			end := victim.Status(peer.id).Session.PeerNotAfter
			p, err := prove(svidOf(t, bad), 1, h.binding, true)
			if err != nil {
				t.Fatal(err)
			}
			h.send(kindProof, p.encode())
			eventually(t, "the proof was checked", func() bool {
				l := victim.link(peer.id)
				if l == nil {
					return false
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.refused != nil
			})
			if s := victim.Status(peer.id).Session; s == nil || !s.PeerNotAfter.Equal(end) {
				t.Fatalf("the session became %+v", s)
			}
			eventually(t, "the session ends with the old certificate", func() bool { return !up(victim, peer)() })
			var expired *expiredError
			if err := victim.Status(peer.id).Err; !errors.As(err, &expired) || !tt.want(expired.Refused) {
				t.Errorf("status says %v", err)
			}
			if early := time.Until(end.Add(expiryGrace)); early > 100*time.Millisecond {
				t.Errorf("cut %s before its time", early)
			}
		})
	}
}

// deniedBy reports whether a peer refused the last try because its administrator denied this
// cluster.
func deniedBy(s Status) bool {
	refused, ok := errors.AsType[*RefusedError](s.Err)
	return ok && refused.Denied() && !refused.Untrusted()
}

func TestADeniedPeerLearnsThatItIs(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	denied := map[peering.ClusterID]bool{}
	denying := func(c *Config, _ *identity.SourceConfig) {
		c.Denied = func(id peering.ClusterID) bool {
			mu.Lock()
			defer mu.Unlock()
			return denied[id]
		}
	}
	set := func(id peering.ClusterID, v bool) {
		mu.Lock()
		defer mu.Unlock()
		denied[id] = v
	}
	a, b := start(t, denying), start(t, dialOnly)
	trustEachOther(t, a, b)
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	mustWho(t, b, a)
	set(b.id, true)
	a.bundles.Remove(b.id)
	// The session ends with the denial, or with its connection; then each dial is refused.
	eventually(t, "the peer learns that it is denied", func() bool { return deniedBy(b.Status(a.id)) })
	// Forgotten there, it is a stranger.
	set(b.id, false)
	eventually(t, "the peer is a stranger", func() bool {
		refused, ok := errors.AsType[*RefusedError](b.Status(a.id).Err)
		return ok && refused.Untrusted()
	})
	trust(t, a, b)
	eventually(t, "the session is back", up(b, a))
	// Even one that is still in the bundles.
	set(b.id, true)
	b.Close(a.id, errors.New("again"))
	eventually(t, "denied again", func() bool { return deniedBy(b.Status(a.id)) })
}

func TestOnlyThePeerItselfReportsADenial(t *testing.T) {
	t.Parallel()
	everybody := func(c *Config, _ *identity.SourceConfig) {
		c.Denied = func(peering.ClusterID) bool { return true }
	}
	a, b, mallory := start(t, dialOnly), start(t), start(t, everybody)
	trustEachOther(t, a, b)
	trustEachOther(t, a, mallory)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{mallory.addr}}})
	eventually(t, "the dial failed", func() bool { return a.Status(b.id).Err != nil })
	if deniedBy(a.Status(b.id)) {
		t.Error("another cluster's denial counts")
	}
}

func TestRoundTripAndClockAreMeasuredOnBothSides(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		eventually(t, "it is measured", func() bool {
			s := pair[0].Status(pair[1].id).Session
			return s != nil && s.RoundTrip > 0
		})
		if s := pair[0].Status(pair[1].id).Session; s.RoundTrip > 5*time.Second || s.ClockSkew.Abs() > 5*time.Second {
			t.Errorf("round trip %s, skew %s", s.RoundTrip, s.ClockSkew)
		}
	}
}

func TestMeasurementsTakeOnlyAnswersToTheLastProbe(t *testing.T) {
	t.Parallel()
	l := &link{}
	now := time.Unix(1_700_000_000, 0)
	l.answer(0, now, now) // nothing was asked
	if l.roundTrip != 0 {
		t.Error("an answer to nothing counts")
	}
	l.nextProbe(now)
	l.answer(7, now, now.Add(time.Second))
	if l.roundTrip != 0 {
		t.Error("an answer to another probe counts")
	}
	l.answer(1, now.Add(time.Hour+50*time.Millisecond), now.Add(100*time.Millisecond))
	if l.roundTrip != 100*time.Millisecond || l.clockSkew != time.Hour {
		t.Errorf("round trip %s, skew %s", l.roundTrip, l.clockSkew)
	}
	l.answer(1, now, now.Add(time.Minute))
	if l.roundTrip != 100*time.Millisecond {
		t.Error("a second answer counts")
	}
	l.nextProbe(now)
	l.answer(2, time.UnixMilli(math.MinInt64), now.Add(180*time.Millisecond)) // a hostile clock
	if l.roundTrip != 110*time.Millisecond || l.clockSkew.Abs() < time.Hour {
		t.Errorf("round trip %s, skew %s", l.roundTrip, l.clockSkew)
	}
}

func TestMetricsCountSessionsAndDials(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(a.Collector())
	gather := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				key := f.GetName()
				for _, l := range m.GetLabel() {
					key += " " + l.GetValue()
				}
				out[key] = m.GetGauge().GetValue()
			}
		}
		return out
	}
	_, leaf := a.source.Leaf()
	got := gather()
	for key, want := range map[string]float64{
		"entente_sessions":                            0,
		"entente_sessions_in_band":                    0,
		"entente_sessions_carried":                    0,
		"entente_certificate_not_after_seconds leaf ": float64(leaf.Unix()),
		"entente_certificate_not_after_seconds root ": float64(a.source.Identity().Root().NotAfter.Unix()),
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s is %v (%t), want %v", key, v, ok, want)
		}
	}
	if len(got) != 5 {
		t.Errorf("without a session there is %v", got)
	}
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	eventually(t, "the round trip is measured", func() bool {
		s := a.Status(b.id).Session
		return s != nil && s.RoundTrip > 0
	})
	got = gather()
	_, end := b.source.Leaf()
	if v := got["entente_certificate_not_after_seconds peer "+string(b.id)]; v != float64(end.Unix()) {
		t.Errorf("the peer's certificate ends at %v, want %d", v, end.Unix())
	}
	if v := got["entente_session_round_trip_seconds "+string(b.id)]; v <= 0 || v > 5 {
		t.Errorf("round trip %v", v)
	}
	if v, ok := got["entente_session_clock_skew_seconds "+string(b.id)]; !ok || math.Abs(v) > 5 {
		t.Errorf("skew %v", v)
	}
	if got["entente_sessions"] != 1 || len(got) != 8 {
		t.Errorf("with a session there is %v", got)
	}
}

func FuzzControl(f *testing.F) {
	// A proof by the dialling side of a connection whose binding is 32 zero bytes.
	stored, err := os.ReadFile("testdata/proof.bin")
	if err != nil {
		f.Fatal(err)
	}
	good, err := decodeProof(stored)
	if err != nil {
		f.Fatal(err)
	}
	binding := make([]byte, 32)
	if _, err := good.certificates(binding, true); err != nil {
		f.Fatal(err)
	}
	f.Add(encodeMessage(kindProof, good.encode()))
	f.Add(encodeMessage(kindProbe, make([]byte, 8)))
	f.Add(encodeMessage(kindAnswer, make([]byte, 16)))
	f.Add([]byte{kindProof, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, body, err := readMessage(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		if len(body) > maxControl {
			t.Fatalf("read %d bytes", len(body))
		}
		if again := encodeMessage(kind, body); string(again) != string(b[:len(again)]) {
			t.Fatalf("%x became %x", b, again)
		}
		p, err := decodeProof(body)
		if err != nil {
			return
		}
		if string(p.encode()) != string(body) {
			t.Fatalf("%x became %x", body, p.encode())
		}
		same := p.number == good.number && slices.EqualFunc(p.chain, good.chain, bytes.Equal)
		chain, err := p.certificates(binding, true)
		if err == nil && !same && bytes.Equal(chain[0].Raw, good.chain[0]) {
			t.Fatal("a proof was changed and still verifies")
		}
		if _, err := p.certificates(binding, false); err == nil {
			t.Fatal("a proof verifies for the other direction")
		}
	})
}
