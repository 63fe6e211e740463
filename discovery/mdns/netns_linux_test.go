package mdns

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/discovery"
)

// A segment is network namespaces with one interface each, eth0, on one bridge.
type segment struct {
	t     testing.TB
	id    string
	hosts int
}

func ip(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func newSegment(t testing.TB, hosts int) *segment {
	t.Helper()
	if os.Getuid() != 0 {
		skip(t, "root makes network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		skip(t, "ip is not installed (Debian: iproute2)")
	}
	s := &segment{t, fmt.Sprintf("mdns%d", os.Getpid()%100000), hosts}
	if out, err := exec.CommandContext(t.Context(), "ip", "netns", "add", s.id+"-br").CombinedOutput(); err != nil {
		skip(t, "no network namespaces here: %s", out)
	}
	t.Cleanup(func() { s.remove("br") })
	br := s.id + "-br"
	ip(t, "-n", br, "link", "add", "lan", "type", "bridge", "mcast_snooping", "0")
	ip(t, "-n", br, "link", "set", "lan", "up")
	for i := 1; i <= hosts; i++ {
		ns := s.ns(i)
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { s.remove(fmt.Sprint(i)) })
		ip(t, "-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", fmt.Sprintf("port%d", i), "netns", br)
		ip(t, "-n", br, "link", "set", fmt.Sprintf("port%d", i), "master", "lan", "up")
		// No duplicate address detection: it takes a second.
		_ = exec.CommandContext(t.Context(), "ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0").Run()
		ip(t, "-n", ns, "addr", "add", fmt.Sprintf("10.9.0.%d/24", i), "dev", "eth0")
		ip(t, "-n", ns, "addr", "add", fmt.Sprintf("fd09::%d/64", i), "dev", "eth0", "nodad")
		ip(t, "-n", ns, "link", "set", "lo", "up")
		ip(t, "-n", ns, "link", "set", "eth0", "up")
	}
	return s
}

func (s *segment) ns(i int) string { return fmt.Sprintf("%s-%d", s.id, i) }

func (s *segment) remove(what string) {
	_ = exec.Command("ip", "netns", "delete", s.id+"-"+what).Run()
}

// in runs do with all of its goroutines' sockets in a namespace: those are opened by
// the thread of Run, which never runs anything else.
func (s *segment) in(i int, do func()) { s.within(fmt.Sprint(i), do) }

func (s *segment) within(what string, do func()) {
	runtime.LockOSThread()
	f, err := os.Open("/run/netns/" + s.id + "-" + what)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		s.t.Error(err)
		return
	}
	do()
	// The thread ends with the goroutine: it is not unlocked.
}

// start runs a responder in a namespace. The returned function ends it.
func (s *segment) start(i int, services ...discovery.Service) (*Responder, func()) {
	s.t.Helper()
	r := New(Config{})
	if err := r.Publish(services); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go s.in(i, func() { done <- r.Run(ctx) })
	stop := func() {
		cancel()
		if done != nil {
			if err := <-done; err != nil {
				s.t.Error(err)
			}
			done = nil
		}
	}
	s.t.Cleanup(stop)
	return r, stop
}

// until waits for what a responder finds.
func until(t testing.TB, r *Responder, what string, ok func([]discovery.Found) bool) []discovery.Found {
	t.Helper()
	end := time.After(30 * time.Second)
	for {
		found := r.Found()
		if ok(found) {
			return found
		}
		select {
		case <-r.Changed():
		case <-end:
			t.Fatalf("after 30 s there is not %s but %+v", what, found)
		}
	}
}

func finds(list ...string) func([]discovery.Found) bool {
	return func(found []discovery.Found) bool { return slices.Equal(names(found), list) }
}

func TestOnRealSockets(t *testing.T) {
	s := newSegment(t, 3)
	a, _ := s.start(1, service(1, "office"))
	b, stop := s.start(2, service(2, "home"))
	// Another process on the first host, and one that wants a name that is taken.
	c, _ := s.start(1, service(3, "lab"))
	found := until(t, a, "home and lab", finds("home", "lab"))
	if want := []string{"10.9.0.2:7443", "[fd09::2]:7443"}; !slices.Equal(found[0].Endpoints, want) || found[0].Where != "eth0" {
		t.Errorf("home is at %q on %s, want %q", found[0].Endpoints, found[0].Where, want)
	}
	until(t, b, "lab and office", finds("lab", "office"))
	until(t, c, "home and office", finds("home", "office"))
	d, _ := s.start(3, service(4, "office"))
	until(t, d, "all", finds("home", "lab", "office"))
	until(t, b, "the one that was renamed", finds("lab", "office", "office (2)"))
	if err := b.Publish([]discovery.Service{service(2, "cottage")}); err != nil {
		t.Fatal(err)
	}
	until(t, a, "another name", finds("cottage", "lab", "office (2)"))
	stop()
	until(t, a, "none after its goodbye", finds("lab", "office (2)"))
	if st := a.Stats()["eth0"]; st != (Stats{}) {
		t.Errorf("the first did not take %+v", st)
	}
}

// Only link-local addresses: endpoints have a zone.
func TestInterfacesComeAndGo(t *testing.T) {
	s := newSegment(t, 2)
	for i := range 2 {
		ip(t, "-n", s.ns(i+1), "addr", "flush", "dev", "eth0", "scope", "global")
	}
	a, _ := s.start(1, service(1, "office"))
	s.start(2, service(2, "home"))
	found := until(t, a, "home", finds("home"))
	if e := found[0].Endpoints; len(e) != 1 || !strings.HasPrefix(e[0], "[fe80::") || !strings.HasSuffix(e[0], "%eth0]:7443") {
		t.Errorf("home is at %q", e)
	}
	ip(t, "-n", s.ns(2), "addr", "add", "10.9.0.2/24", "dev", "eth0")
	until(t, a, "an address more", func(f []discovery.Found) bool {
		return len(f) == 1 && slices.Contains(f[0].Endpoints, "10.9.0.2:7443")
	})
	ip(t, "-n", s.ns(1), "link", "set", "eth0", "down")
	until(t, a, "none", finds())
	ip(t, "-n", s.ns(1), "link", "set", "eth0", "up")
	until(t, a, "home again", finds("home"))
}

// dig does not support Multicast DNS: it is a simple resolver (section 6.7).
func TestASimpleResolverIsAnsweredOnSockets(t *testing.T) {
	s := newSegment(t, 2)
	a, _ := s.start(1, service(1, "office"))
	s.start(2, service(2, "home"))
	until(t, a, "home", finds("home"))
	answer := make(chan []byte, 1)
	go s.in(1, func() {
		defer close(answer)
		conn, err := net.Dial("udp4", "10.9.0.2:5353")
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		p := newPacker(512)
		p.question(question{serviceName, 12, false})
		_, _ = conn.Write(p.bytes(77, 0))
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		b := make([]byte, 9000)
		n, err := conn.Read(b)
		if err != nil {
			t.Error(err)
			return
		}
		answer <- b[:n]
	})
	b, ok := <-answer
	if !ok {
		t.Fatal("no answer")
	}
	m, err := unpack(b)
	if err != nil || m.id != 77 || len(m.questions) != 1 || len(m.answers) != 1 || m.answers[0].ttl > ttlLegacy {
		t.Errorf("answered %+v, %v", m, err)
	}
}
