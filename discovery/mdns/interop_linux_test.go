package mdns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/notify"
)

// These tests run this package beside other programs, in network namespaces: avahi-daemon with a
// D-Bus of its own, and dig. If a program is missing they skip themselves, unless
// ENTENTE_INTEROP=must is set.

// skip skips the test, or fails it with ENTENTE_INTEROP=must.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("ENTENTE_INTEROP") == "must" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// program returns the path of a program of a Debian package.
func program(t testing.TB, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		skip(t, "%s is not installed (Debian: %s)", name, debian)
	}
	return path
}

// An avahi is an avahi-daemon in a namespace of a segment.
type avahi struct {
	t      testing.TB
	ns     string
	bus    string
	daemon *process
}

// avahi starts an avahi-daemon, and the D-Bus by which its tools reach it.
func (s *segment) avahi(i int, host string) *avahi {
	t := s.t
	t.Helper()
	daemon, broker := program(t, "avahi-daemon", "avahi-daemon"), program(t, "dbus-daemon", "dbus-daemon")
	for _, name := range []string{"avahi-browse", "avahi-publish", "avahi-resolve"} {
		program(t, name, "avahi-utils")
	}
	unshare := program(t, "unshare", "util-linux")
	dir := t.TempDir()
	// A path of a Unix socket has 107 bytes at most, which the name of a test may fill.
	short, err := os.MkdirTemp("", "bus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	a := &avahi{t: t, ns: s.ns(i), bus: "unix:path=" + filepath.Join(short, "bus")}
	files := map[string]string{
		"dbus.conf": fmt.Sprintf(`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type><listen>%s</listen><auth>EXTERNAL</auth>
  <policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy>
</busconfig>
`, a.bus),
		"avahi.conf": fmt.Sprintf(`[server]
host-name=%s
domain-name=local
use-ipv4=yes
use-ipv6=yes
allow-interfaces=eth0
ratelimit-interval-usec=1000000
ratelimit-burst=1000
[wide-area]
enable-wide-area=no
[publish]
publish-hinfo=no
publish-workstation=no
publish-aaaa-on-ipv4=yes
publish-a-on-ipv6=yes
[reflector]
enable-reflector=no
[rlimits]
`, host),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spawn(t, exec.Command(broker, "--config-file="+filepath.Join(dir, "dbus.conf"), "--nofork", "--nopidfile"))
	// avahi-daemon ends if there is no bus when it starts.
	socket := strings.TrimPrefix(a.bus, "unix:path=")
	for i := 0; ; i++ {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			break
		} else if i == 200 {
			t.Fatalf("the message bus does not listen: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	// Its socket and its process ID are always below /run, so each has its own. Each of these
	// commands replaces itself with the next, so the process is the daemon.
	a.daemon = spawn(t, a.command(context.Background(), unshare, "--mount", "--propagation", "private", "sh", "-c",
		`mount -t tmpfs tmpfs /run && exec "$@"`, "sh", daemon, "--file="+filepath.Join(dir, "avahi.conf"),
		"--no-drop-root", "--no-chroot", "--no-rlimits", "--no-proc-title"))
	for range 200 {
		if err := a.command(t.Context(), "avahi-browse", "-at").Run(); err == nil {
			return a
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("avahi-daemon does not answer")
	return nil
}

// command runs a program in the namespace, as which names of interfaces mean something.
func (a *avahi) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", a.ns, name}, args...)...)
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+a.bus, "LC_ALL=C.UTF-8")
	return cmd
}

// start runs one of avahi's tools, which does not end.
func (a *avahi) start(name string, args ...string) *process {
	a.t.Helper()
	return spawn(a.t, a.command(context.Background(), name, args...))
}

// says returns the output of one of avahi's tools.
func (a *avahi) says(name string, args ...string) string {
	ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
	defer cancel()
	out, _ := a.command(ctx, name, args...).CombinedOutput()
	return string(out)
}

// A process runs until the test ends. What it writes is kept, with the time.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	rest  []byte
	lines []line
	more  notify.Channel
}

type line struct {
	at   time.Time
	text string
}

func spawn(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{}), more: notify.New()}
	cmd.Stdout, cmd.Stderr = p, p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.end(os.Kill)
		if t.Failed() {
			t.Logf("%s says:\n%s", strings.Join(cmd.Args, " "), p)
		}
	})
	return p
}

// end ends the process with a signal, and waits until it did.
func (p *process) end(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
	<-p.done
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.rest = append(p.rest, b...)
	for {
		text, rest, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok {
			break
		}
		p.lines = append(p.lines, line{now, string(text)})
		p.rest = rest
	}
	p.more.Notify()
	return len(b), nil
}

func (p *process) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, l := range p.lines {
		fmt.Fprintln(&b, l.text)
	}
	return b.String()
}

// line waits for a line that matches, of those after the first n. It returns when it
// came, and how many lines there were up to it.
func (p *process) line(n int, pattern string) (time.Time, int) {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	end := time.After(30 * time.Second)
	for {
		p.mu.Lock()
		for i := n; i < len(p.lines); i++ {
			if l := p.lines[i]; re.MatchString(l.text) {
				p.mu.Unlock()
				return l.at, i + 1
			}
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-end:
			p.t.Fatalf("after 30 s %s has not printed %q", strings.Join(p.cmd.Args, " "), pattern)
		}
	}
}

// list waits until avahi finds all of these of our type.
func (a *avahi) list(want ...string) {
	a.t.Helper()
	var got string
	for end := time.Now().Add(30 * time.Second); slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(got, w) }); {
		if time.Now().After(end) {
			a.t.Fatalf("after 30 s avahi does not find %q, but\n%s", want, got)
		}
		got = a.says("avahi-browse", "-rptk", "_entente._tcp")
	}
}

func automaticService(i int, instance string) discovery.Service {
	s := service(i, instance)
	s.Automatic = true
	return s
}

// publish publishes a cluster with avahi, for as long as the process runs.
func (a *avahi) publish(i int, instance string) *process {
	a.t.Helper()
	args := []string{"-s", "--subtype=_automatic._sub._entente._tcp", instance, "_entente._tcp", "7443"}
	p := a.start("avahi-publish", append(args, service(i, instance).Text.Strings()...)...)
	p.line(0, "^Established under name ")
	return p
}

// What we publish, avahi finds: each record of it, and the goodbye.
func TestAvahiFindsWhatWePublish(t *testing.T) {
	s := newSegment(t, 2)
	a := s.avahi(2, "stranger")
	browse := a.start("avahi-browse", "-rpk", "_entente._tcp")
	sub := a.start("avahi-browse", "-pk", "_automatic._sub._entente._tcp")
	types := a.start("avahi-browse", "-pka")
	const odd = `Büro 3.1 \ "süd"`
	ours := automaticService(1, odd)
	ours.Text.Fingerprint = "0123456789abcdef"
	r, _ := s.start(1, ours)
	// As avahi writes names: bytes other than letters and digits in decimal.
	name := regexp.QuoteMeta(`B\195\188ro\0323\.1\032\\\032\034s\195\188d\034`)
	_, n := browse.line(0, "^=;eth0;IPv[46];"+name+";")
	for _, family := range []string{"IPv4", "IPv6"} {
		browse.line(0, "^=;eth0;"+family+";"+name+`;_entente\._tcp;local;entente-1\.local;`)
		sub.line(0, `^\+;eth0;`+family+";"+name+";_entente._tcp;local$")
		types.line(0, `^\+;eth0;`+family+";"+name+";_entente._tcp;local$")
	}
	text := browse.String()
	for _, want := range append(ours.Text.Strings(), ";7443;") {
		// It shows strings by bytes, too.
		if !strings.Contains(text, want) && !strings.Contains(text, escaped(want)) {
			t.Errorf("avahi does not say %q of it:\n%s", want, text)
		}
	}
	for _, tt := range [][2]string{{"-4", "10.9.0.1"}, {"-6", "fd09::1"}} {
		if got := a.says("avahi-resolve", tt[0], "-n", "entente-1.local"); got != "entente-1.local\t"+tt[1]+"\n" {
			t.Errorf("avahi resolves our host to %q", got)
		}
	}
	// A change is announced to avahi, and it handles a goodbye.
	ours.Port = 7444
	if err := r.Publish([]discovery.Service{ours}); err != nil {
		t.Fatal(err)
	}
	a.list(";7444;")
	if err := r.Publish(nil); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	at, _ := browse.line(n, "^-;eth0;IPv4;"+name)
	browse.line(n, "^-;eth0;IPv6;"+name)
	t.Logf("avahi says that it is gone after %v", at.Sub(gone).Round(time.Millisecond))
	if got := a.says("avahi-browse", "-ptk", "_entente._tcp"); got != "" {
		t.Errorf("after the goodbye there is %q", got)
	}
}

// escaped is s as avahi-browse -p writes it: quotes, and bytes that are not ASCII, in decimal.
func escaped(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteString(`\` + string(c))
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\%03d`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// We find what avahi publishes, until its goodbye.
func TestWeFindWhatAvahiPublishes(t *testing.T) {
	s := newSegment(t, 2)
	r, _ := s.start(1)
	a := s.avahi(2, "stranger")
	home := a.publish(2, "home")
	found := until(t, r, "home", func(f []discovery.Found) bool { return finds("home")(f) && f[0].Automatic && len(f[0].Endpoints) > 1 })
	if f := found[0]; f.Text != service(2, "home").Text || !slices.Equal(f.Endpoints, []string{"10.9.0.2:7443", "[fd09::2]:7443"}) {
		t.Errorf("found %+v", f)
	}
	// With the other family only, it is found at the remaining address.
	ip(t, "-n", s.ns(2), "addr", "del", "10.9.0.2/24", "dev", "eth0")
	until(t, r, "no IPv4 address", func(f []discovery.Found) bool {
		return finds("home")(f) && slices.Equal(f[0].Endpoints, []string{"[fd09::2]:7443"})
	})
	gone := time.Now()
	home.end(os.Interrupt)
	until(t, r, "none after its goodbye", finds())
	// One second of grace (RFC 6762 section 10.1), and time for a busy machine.
	if d := time.Since(gone); d < grace {
		t.Errorf("gone after %v, without grace", d)
	} else {
		t.Logf("gone after %v", d.Round(time.Millisecond))
	}
}

// A daemon that is killed sends no goodbye. Its records expire before their TTL if others ask for
// them without an answer (RFC 6762 section 10.5).
func TestAnAvahiThatIsKilledIsForgotten(t *testing.T) {
	s := newSegment(t, 3)
	r, _ := s.start(1)
	a := s.avahi(2, "stranger")
	a.publish(2, "home")
	until(t, r, "home", finds("home"))
	a.daemon.end(os.Kill)
	killed := time.Now()
	// It does not know it, so it asks.
	other := s.avahi(3, "another")
	for _, family := range []string{"-4", "-6"} {
		other.start("avahi-resolve", family, "-n", "stranger.local")
	}
	until(t, r, "none", finds())
	d := time.Since(killed)
	t.Logf("gone %v after it was killed", d.Round(time.Millisecond))
	if d > 40*time.Second {
		t.Errorf("gone after %v: that was the TTL", d)
	}
}

// If no other host asks, it is gone when the TTL of its host ends, 120 s. As that takes long, it
// runs only with ENTENTE_INTEROP_LONG.
func TestAnAvahiThatIsKilledEndsWithItsTTL(t *testing.T) {
	if os.Getenv("ENTENTE_INTEROP_LONG") == "" {
		t.Skip("two minutes: ENTENTE_INTEROP_LONG=1 runs it")
	}
	s := newSegment(t, 2)
	r, _ := s.start(1)
	a := s.avahi(2, "stranger")
	a.publish(2, "home")
	until(t, r, "home", finds("home"))
	a.daemon.end(os.Kill)
	killed := time.Now()
	// Our own questions at 80 % of the TTL and later have no answer, which does not end it: this
	// host may have missed the answers.
	for end := time.After(130 * time.Second); len(r.Found()) > 0; {
		select {
		case <-r.Changed():
		case <-end:
			t.Fatal("it is still there")
		}
	}
	d := time.Since(killed)
	t.Logf("gone %v after it was killed", d.Round(time.Millisecond))
	if d < 100*time.Second || d > ttlHost+2*time.Second {
		t.Errorf("gone after %v, want up to %v", d, ttlHost)
	}
}

// Avahi has the names that we want.
func TestWeGiveWayToAvahi(t *testing.T) {
	s := newSegment(t, 3)
	watcher, _ := s.start(3)
	a := s.avahi(2, "entente-1")
	a.publish(2, "office")
	until(t, watcher, "avahi's", finds("office"))
	ours, _ := s.start(1, service(1, "office"))
	found := until(t, watcher, "both", finds("office", "office (2)"))
	if found[0].ID != id(2) || found[1].ID != id(1) {
		t.Errorf("found %+v", found)
	}
	until(t, ours, "avahi's", finds("office"))
	a.list(`;office\032\0402\041;_entente._tcp;local;entente-1-2.local;`, ";office;_entente._tcp;local;entente-1.local;")
}

// We have the names that avahi wants.
func TestAvahiGivesWayToUs(t *testing.T) {
	s := newSegment(t, 3)
	watcher, _ := s.start(3)
	ours, _ := s.start(1, service(1, "office"))
	until(t, watcher, "ours", finds("office"))
	a := s.avahi(2, "entente-1")
	p := a.publish(2, "office")
	p.line(0, `^Established under name 'office #2'`)
	for _, r := range []*Responder{watcher, ours} {
		until(t, r, "both", func(f []discovery.Found) bool { return slices.Contains(names(f), "office #2") })
	}
	found := until(t, watcher, "both", finds("office", "office #2"))
	if found[0].ID != id(1) || found[1].ID != id(2) || !slices.Contains(found[1].Endpoints, "10.9.0.2:7443") {
		t.Errorf("found %+v", found)
	}
	// Its next name for a host increases the number at its end.
	a.list(`;office\032\0352;_entente._tcp;local;entente-2.local;`)
}

// Avahi and we on one host, with one port, one address: both are found by all, each
// finds the other, and the end of one is not the end of the other.
func TestAvahiAndWeShareThePort(t *testing.T) {
	s := newSegment(t, 3)
	a := s.avahi(1, "host")
	ours, _ := s.start(1, service(1, "office"))
	a.publish(2, "home")
	far, _ := s.start(2, service(3, "lab"))
	farAvahi := s.avahi(3, "far")
	farAvahi.publish(4, "cottage")
	until(t, ours, "the other three", finds("cottage", "home", "lab"))
	until(t, far, "the other three", finds("cottage", "home", "office"))
	var all []string
	for _, n := range []string{"office", "home", "lab", "cottage"} {
		all = append(all, "=;eth0;IPv4;"+n+";", "=;eth0;IPv6;"+n+";")
	}
	a.list(all...)
	farAvahi.list(all...)
	if st := ours.Stats()["eth0"]; st.Conflicts != 0 || st.Malformed != 0 {
		t.Errorf("we say %+v", st)
	}
	a.daemon.end(os.Interrupt)
	until(t, far, "those that are left", finds("cottage", "office"))
	until(t, ours, "those that are left", finds("cottage", "lab"))
}

// dig asks like a resolver without support for Multicast DNS (RFC 6762 section 6.7).
func TestDigIsAnswered(t *testing.T) {
	dig := program(t, "dig", "bind9-dnsutils")
	s := newSegment(t, 2)
	watcher, _ := s.start(2)
	s.start(1, automaticService(1, "office"))
	until(t, watcher, "office", finds("office"))
	ask := func(server string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "ip", append([]string{"netns", "exec", s.ns(2), dig, "@" + server, "-p", "5353", "+tries=1", "+time=5", "+noedns"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("dig @%s %v: %v\n%s", server, args, err, out)
		}
		return string(out)
	}
	for query, want := range map[string]string{
		"_entente._tcp.local PTR":                 `_entente\._tcp\.local\.\s+10\s+IN\s+PTR\s+office\._entente\._tcp\.local\.`,
		"_automatic._sub._entente._tcp.local PTR": `_automatic\._sub\._entente\._tcp\.local\.\s+10\s+IN\s+PTR\s+office\._entente`,
		"office._entente._tcp.local SRV":          `office\._entente\._tcp\.local\.\s+10\s+IN\s+SRV\s+0 0 7443 entente-1\.local\.`,
		"office._entente._tcp.local TXT":          `office\._entente\._tcp\.local\.\s+10\s+IN\s+TXT\s+"txtvers=1" "id=` + string(id(1)) + `"`,
		"entente-1.local A":                       `entente-1\.local\.\s+10\s+IN\s+A\s+10\.9\.0\.1`,
		"entente-1.local AAAA":                    `entente-1\.local\.\s+10\s+IN\s+AAAA\s+fd09::1`,
	} {
		for _, server := range []string{"10.9.0.1", "fd09::1"} {
			got := ask(server, strings.Fields(query)...)
			if !regexp.MustCompile(want).MatchString(got) || !strings.Contains(got, "status: NOERROR") {
				t.Errorf("dig @%s %s: %s", server, query, got)
			}
		}
	}
}

// dig takes answers from the address that it asked only, so this one asks the groups.
func TestASimpleQueryToTheGroupIsAnswered(t *testing.T) {
	s := newSegment(t, 2)
	ip(t, "-n", s.ns(2), "route", "add", "224.0.0.0/4", "dev", "eth0")
	watcher, _ := s.start(2)
	s.start(1, automaticService(1, "office"))
	until(t, watcher, "office", finds("office"))
	for _, tt := range [][3]string{{"udp4", "224.0.0.251:5353", "10.9.0.1"}, {"udp6", "[ff02::fb%eth0]:5353", "fe80::"}} {
		done := make(chan struct{})
		go s.in(2, func() {
			defer close(done)
			var m dns.Msg
			m.SetQuestion("office._entente._tcp.local.", dns.TypeSRV)
			if err := askGroup(&m, tt[0], tt[1], tt[2]); err != nil {
				t.Errorf("%s: %v", tt[1], err)
			}
		})
		<-done
	}
}

func askGroup(m *dns.Msg, network, group, want string) error {
	conn, err := net.ListenPacket(network, ":0")
	if err != nil {
		return err
	}
	defer conn.Close()
	to, err := net.ResolveUDPAddr(network, group)
	if err != nil {
		return err
	}
	if to.Zone != "" {
		// Names of interfaces are kept for all namespaces together: a number is not looked up.
		eth0, err := net.InterfaceByName(to.Zone)
		if err != nil {
			return err
		}
		to.Zone = strconv.Itoa(eth0.Index)
	}
	b, err := m.Pack()
	if err != nil {
		return err
	}
	// The kernel may still be giving the interface its address of IPv6.
	for range 100 {
		if _, err = conn.WriteTo(b, to); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	b = make([]byte, 9000)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, from, err := conn.ReadFrom(b)
	if err != nil {
		return err
	}
	var r dns.Msg
	if err := r.Unpack(b[:n]); err != nil {
		return err
	}
	if r.Id != m.Id || len(r.Question) != 1 || len(r.Answer) != 1 || r.Answer[0].Header().Ttl > 10 || r.Answer[0].Header().Class != dns.ClassINET {
		return fmt.Errorf("answered\n%v", &r)
	}
	if got := from.String(); !strings.Contains(got, want) || !strings.HasSuffix(got, ":5353") {
		return fmt.Errorf("answered by %s", got)
	}
	return nil
}
