// Package namedtest runs BIND for tests.
package namedtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Named is a name server of BIND on loopback. It ends with the test.
type Named struct {
	// Addr is where it answers, over UDP and TCP.
	Addr netip.AddrPort

	t    testing.TB
	dir  string
	zone string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// New starts one that is primary for these zones, at least one, each with no more than
// its SOA and NS record. Config is the keys and the zones of its configuration; a
// zone's file has its name. The test is skipped where BIND is not installed.
func New(t testing.TB, config string, zones ...string) *Named {
	t.Helper()
	if _, err := exec.LookPath("named"); err != nil {
		t.Skip("named is not installed (Debian: bind9)")
	}
	n := &Named{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), FreePort(t)), t: t, dir: t.TempDir(), zone: dns.Fqdn(zones[0])}
	for _, z := range zones {
		n.write(z, "$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n@ NS ns\nns A 127.0.0.1\n")
	}
	t.Cleanup(func() {
		n.Stop()
		if t.Failed() {
			t.Logf("named says:\n%s", n.log.String())
		}
	})
	n.Configure(config)
	return n
}

// Configure has it start again with other keys and zones, and with what it kept.
func (n *Named) Configure(config string) {
	n.t.Helper()
	n.Stop()
	n.write("named.conf", fmt.Sprintf(`
options {
	directory %q; pid-file none; session-keyfile none; managed-keys-directory %q;
	listen-on port %d { 127.0.0.1; }; listen-on-v6 { none; };
	recursion no; dnssec-validation no; notify no; allow-transfer { none; };
};
controls { };
`, n.dir, n.dir, n.Addr.Port())+config)
	n.Start()
}

func (n *Named) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// Start starts it, with what it kept, and waits until it answers.
func (n *Named) Start() {
	n.t.Helper()
	n.cmd = exec.CommandContext(context.WithoutCancel(n.t.Context()), "named", "-g", "-n", "1", "-c", filepath.Join(n.dir, "named.conf"))
	n.cmd.Stdout, n.cmd.Stderr = &n.log, &n.log
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	for range 200 {
		if len(n.Ask(n.zone, dns.TypeSOA)) == 1 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.t.Fatal("named does not answer")
}

// Stop ends it as a crash would. It is fine to stop one that does not run.
func (n *Named) Stop() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	n.cmd = nil
}

// Ask returns the records that it answers with, none if it does not answer.
func (n *Named) Ask(name string, qtype uint16) []dns.RR {
	r, _, err := (&dns.Client{Net: "tcp", Timeout: 5 * time.Second}).Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype), n.Addr.String())
	if err != nil {
		return nil
	}
	return r.Answer
}

// FreePort returns a port of loopback that is free for UDP and TCP.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	for range 20 {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().(*net.TCPAddr).AddrPort()
		p, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", addr.String())
		_ = l.Close()
		if err == nil {
			_ = p.Close()
			return addr.Port()
		}
	}
	t.Fatal("no port is free")
	return 0
}
