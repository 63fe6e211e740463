package dnsupdate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/namedtest"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/admin"
)

const (
	updateSecret = "YW5vdGhlciBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcyBvciBzbw=="
	otherSecret  = "c2l4dGVlbiBieXRlcyBvZiBhIHNlY3JldCBvciBtb3Jl"
)

func keyFile(secret string) string {
	return fmt.Sprintf("key \"office\" {\n\talgorithm hmac-sha256;\n\tsecret %q;\n};\n", secret)
}

// updates is a publisher in front of a name server, with a clock of its own.
type updates struct {
	*Publishing
	t        *testing.T
	named    *namedtest.Named
	client   ctrlclient.WithWatch
	recorder *events.FakeRecorder
	log      *strings.Builder
	clock    time.Time
	name     string
	at       []string
	report   atomic.Pointer[[]admin.DNSPublication]
	// automatic is whether it peers by policy.
	automatic bool
}

// newUpdates publishes "office", whose key may write all of example.com and sub.test, and none of
// frozen.test.
func newUpdates(t *testing.T) *updates {
	t.Helper()
	u := &updates{
		t: t, recorder: events.NewFakeRecorder(100), log: &strings.Builder{}, clock: time.Now(), name: "office", at: []string{"192.0.2.10:7443"},
		client: fake.NewClientBuilder().WithScheme(kube.Scheme()).Build(),
		named: namedtest.New(t, keyFile(updateSecret)+`
zone "example.com" { type primary; file "example.com"; update-policy { grant office zonesub ANY; }; };
zone "second.test" { type primary; file "second.test"; update-policy { grant office zonesub ANY; }; };
zone "frozen.test" { type primary; file "frozen.test"; };
`, "example.com", "second.test", "frozen.test"),
	}
	u.begin(Config{
		Server: u.named.Addr.String(), Zone: "example.com", Secret: "dns-key", SecretKey: "key", TTL: 5 * time.Minute,
	})
	u.secret(keyFile(updateSecret))
	return u
}

// begin is the start of an agent with these settings.
func (u *updates) begin(cfg Config) {
	u.Publishing = &Publishing{
		Config: cfg, Namespace: "entente-system", Client: u.client, Events: u.recorder, Log: slog.New(slog.NewTextHandler(u.log, nil)),
		Now: func() time.Time { return u.clock }, Report: &u.report,
		Service: func() discovery.Service {
			s := discovery.NewService(peering.ClusterID(strings.Repeat("a", 32)), u.name, 1, u.at)
			s.Automatic = u.automatic
			return s
		},
	}
}

// secret makes the key's Secret have this; "" removes it.
func (u *updates) secret(text string) {
	u.t.Helper()
	u.secretNamed("dns-key", text)
}

func (u *updates) secretNamed(name, text string) {
	u.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: name}}
	if err := u.client.Delete(u.t.Context(), s); ctrlclient.IgnoreNotFound(err) != nil {
		u.t.Fatal(err)
	}
	if text == "" {
		return
	}
	s = &corev1.Secret{ObjectMeta: s.ObjectMeta, Data: map[string][]byte{"key": []byte(text)}}
	s.ResourceVersion = ""
	if err := u.client.Create(u.t.Context(), s); err != nil {
		u.t.Fatal(err)
	}
}

// reconcile reconciles once, after some time.
func (u *updates) reconcile(after time.Duration) (done bool) {
	u.t.Helper()
	u.clock = u.clock.Add(after)
	done, err := u.Publishing.reconcile(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	return done
}

// answers returns the server's records, each as "TYPE VALUE".
func (u *updates) answers(name string, qtype uint16) (out []string) {
	for _, rr := range u.named.Ask(name, qtype) {
		out = append(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(out)
	return out
}

// has checks the server's records of an instance in a zone and of its host.
func (u *updates) has(zone, instance string, addrs ...string) {
	u.t.Helper()
	pointers := u.answers("_entente._tcp."+zone, dns.TypePTR)
	srv := u.answers(instance+"._entente._tcp."+zone, dns.TypeSRV)
	if len(addrs) == 0 {
		if slices.Contains(pointers, instance+"._entente._tcp."+zone+".") || len(srv)+len(u.answers(instance+"._entente._tcp."+zone, dns.TypeTXT)) != 0 {
			u.t.Errorf("%s is in %s: %q, %q", instance, zone, pointers, srv)
		}
		return
	}
	if !slices.Contains(pointers, instance+"._entente._tcp."+zone+".") || len(srv) != 1 {
		u.t.Errorf("%s is not in %s: %q, %q", instance, zone, pointers, srv)
		return
	}
	if got := u.answers(strings.Fields(srv[0])[3], dns.TypeA); !slices.Equal(got, addrs) {
		u.t.Errorf("%s is at %q, want %q", instance, got, addrs)
	}
}

func (u *updates) configMap() map[string]string {
	u.t.Helper()
	var cm corev1.ConfigMap
	err := u.client.Get(u.t.Context(), ctrlclient.ObjectKey{Namespace: "entente-system", Name: ConfigMap}, &cm)
	if ctrlclient.IgnoreNotFound(err) != nil {
		u.t.Fatal(err)
	}
	return cm.Data
}

// wantEvent checks that the status, an event and the log have a text, and no secret, and
// takes the events.
func (u *updates) wantEvent(reason, text string) {
	u.t.Helper()
	var all []string
	for len(u.recorder.Events) > 0 {
		all = append(all, <-u.recorder.Events)
	}
	if !slices.ContainsFunc(all, func(e string) bool { return strings.Contains(e, reason) && strings.Contains(e, text) }) {
		u.t.Errorf("the events are %q, want %s with %q", all, reason, text)
	}
	if cm := u.configMap(); reason != "WithdrawnFromDNS" && !strings.Contains(cm["status"], text) {
		u.t.Errorf("the status is %q, want %q", cm["status"], text)
	}
	for where, text := range map[string]string{"ConfigMap": fmt.Sprint(u.configMap()), "events": fmt.Sprint(all), "log": u.log.String(), "state": fmt.Sprintf("%+v", u.Config)} {
		for _, secret := range []string{updateSecret, otherSecret, "secret of sixteen"} {
			if strings.Contains(text, secret) {
				u.t.Errorf("the %s has the secret: %s", where, text)
			}
		}
	}
}

// reports checks the status of each place for administrators; times are not compared.
func (u *updates) reports(want ...admin.DNSPublication) {
	u.t.Helper()
	got := []admin.DNSPublication{}
	if all := u.report.Load(); all != nil {
		got = slices.Clone(*all)
	}
	for i := range got {
		if at := got[i].Confirmed; !at.IsZero() && (at.After(u.clock) || u.clock.Sub(at) > 15*time.Minute) {
			u.t.Errorf("%s was confirmed at %s, and it is %s", got[i].Domain, at, u.clock)
		}
		if i < len(want) && want[i].Problem != "" && strings.Contains(got[i].Problem, want[i].Problem) {
			got[i].Problem = want[i].Problem
		}
	}
	confirmed := cmp.Transformer("ever", func(at time.Time) bool { return !at.IsZero() })
	if diff := cmp.Diff(append([]admin.DNSPublication{}, want...), got, confirmed); diff != "" {
		u.t.Errorf("the report (-want +got)\n%s", diff)
	}
}

// quiet checks that nothing was recorded.
func (u *updates) quiet() {
	u.t.Helper()
	for len(u.recorder.Events) > 0 {
		u.t.Errorf("recorded %s", <-u.recorder.Events)
	}
}

func TestTheClusterStaysPublishedInDNS(t *testing.T) {
	t.Parallel()
	u := newUpdates(t)
	serial := func() string { return fmt.Sprint(u.answers("example.com", dns.TypeSOA)) }
	u.reconcile(0)
	u.wantEvent("PublishedInDNS", `published in example.com as "office"`)
	u.has("example.com", "office", "192.0.2.10")
	if got := u.named.Ask("office._entente._tcp.example.com", dns.TypeTXT); len(got) != 1 || got[0].Header().Ttl != 300 || !strings.Contains(got[0].String(), `"id=`+strings.Repeat("a", 32)) {
		t.Errorf("the TXT record is %v", got)
	}

	// Nothing is written, or reported, while nothing changes.
	before := serial()
	for range 5 {
		u.reconcile(10 * time.Minute)
	}
	if now := serial(); now != before {
		t.Errorf("SOA %s, before %s", now, before)
	}
	u.quiet()

	// A restarted process knows what is published.
	u.begin(u.Config)
	u.reconcile(0)
	u.quiet()

	u.at = []string{"192.0.2.11:7443", "192.0.2.12:7443", "10.0.0.1:80", "peer.example:7443"}
	u.reconcile(publishInterval)
	u.has("example.com", "office", "192.0.2.11", "192.0.2.12")
	u.at = nil // All nodes are away: the records stay.
	u.reconcile(publishInterval)
	u.wantEvent("NotPublishedInDNS", "none of this cluster's endpoints")
	u.has("example.com", "office", "192.0.2.11", "192.0.2.12")
	u.at = []string{"192.0.2.10:7443"}

	for _, u.automatic = range []bool{true, false} {
		u.reconcile(publishInterval)
		if n := len(u.answers("_automatic._sub._entente._tcp.example.com", dns.TypePTR)); (n == 1) != u.automatic {
			t.Errorf("automatic is %t, and there are %d pointers", u.automatic, n)
		}
	}

	// Another name, and then another zone: the old records are removed.
	u.name = "bureau"
	u.reconcile(publishInterval)
	u.wantEvent("WithdrawnFromDNS", `removed "office" from example.com`)
	u.has("example.com", "office")
	u.has("example.com", "bureau", "192.0.2.10")
	moved := u.Config
	moved.Zone = "second.test"
	u.begin(moved)
	u.reconcile(0)
	u.has("example.com", "bureau")
	u.has("second.test", "bureau", "192.0.2.10")
	u.wantEvent("WithdrawnFromDNS", `removed "bureau" from example.com`)

	// And without a server nothing is left, not even the ConfigMap.
	u.begin(Config{})
	if !u.reconcile(0) || u.configMap() != nil {
		t.Errorf("the ConfigMap has %v", u.configMap())
	}
	u.has("second.test", "bureau")
	u.reports()
}

// The server's errors reach the administrator, who can fix them without a restart.
func TestServerErrorsAreReported(t *testing.T) {
	t.Parallel()
	u := newUpdates(t)
	u.reconcile(0)
	u.wantEvent("PublishedInDNS", "office")
	for _, tt := range []struct{ secret, want string }{
		{keyFile(otherSecret), "BADSIG"},
		{strings.Replace(keyFile(updateSecret), "office", "nobody", 1), "BADKEY"},
		{keyFile("c2hvcnQ="), "its secret has 5 bytes"},
		{updateSecret, "set discovery.update.keyName"},
		{"", `Secret entente-system/dns-key: secrets "dns-key" not found`},
	} {
		u.at = []string{fmt.Sprintf("192.0.2.%d:7443", 20+len(tt.secret))} // so that there is something to write
		u.secret(tt.secret)
		u.reconcile(publishInterval)
		u.wantEvent("NotPublishedInDNS", tt.want)
		u.reconcile(publishInterval / 2)
		u.quiet()
		u.has("example.com", "office", "192.0.2.10")
	}
	// The right key, with its name in the settings.
	u.Config.KeyName, u.Config.Algorithm = "office", "hmac-sha256"
	u.secret(updateSecret + "\n")
	u.at = []string{"192.0.2.11:7443"}
	u.reconcile(publishInterval)
	u.wantEvent("PublishedInDNS", "office")
	u.has("example.com", "office", "192.0.2.11")

	// The server is away, and comes back.
	u.named.Stop()
	u.at = []string{"192.0.2.12:7443"}
	u.reconcile(publishInterval)
	u.wantEvent("NotPublishedInDNS", "reachable")
	u.named.Start()
	u.reconcile(time.Second)
	u.has("example.com", "office", "192.0.2.11") // it is not due
	u.reconcile(publishInterval)
	u.wantEvent("PublishedInDNS", "office")
	u.has("example.com", "office", "192.0.2.12")

	refused := u.Config
	refused.Zone = "frozen.test"
	u.begin(refused)
	u.reconcile(0)
	u.wantEvent("NotPublishedInDNS", "REFUSED")
	nobody := u.Config
	nobody.Server = "127.0.0.1:99999"
	u.begin(nobody)
	u.reconcile(0)
	u.wantEvent("NotPublishedInDNS", "want HOST or HOST:PORT")
	nobody.Server = "ns.nowhere.test"
	u.begin(nobody)
	u.lookup = func(context.Context, string, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
	u.reconcile(0)
	u.wantEvent("NotPublishedInDNS", "find server ns.nowhere.test: no such host")
	// Of several addresses one that is away does not matter.
	u.Config.Server, u.Config.Zone = fmt.Sprintf("ns.example.com:%d", u.named.Addr.Port()), "example.com"
	u.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}, nil
	}
	u.reconcile(publishInterval)
	u.has("example.com", "office", "192.0.2.12")
}

// A cluster that moves to another place is found all the time: it is in the new place
// before it is gone from the old one.
func TestAClusterThatMovesIsFoundAllTheTime(t *testing.T) {
	t.Parallel()
	u := newUpdates(t)
	second := func(policy string) {
		u.named.Configure(keyFile(updateSecret) + `
zone "example.com" { type primary; file "example.com"; update-policy { grant office zonesub ANY; }; };
zone "second.test" { type primary; file "second.test"; update-policy { ` + policy + ` }; };
`)
	}
	u.reconcile(0)
	u.wantEvent("PublishedInDNS", "office")

	// The other server is not there, and then its key may not write.
	away := u.Config
	away.Server, away.Zone = "127.0.0.1:1", "second.test"
	u.begin(away)
	u.reconcile(0)
	u.wantEvent("NotPublishedInDNS", "reachable")
	u.reports(
		admin.DNSPublication{Domain: "second.test", Zone: "second.test", Server: away.Server, Instance: "office", Host: "entente-aaaaaaaa", Problem: "connection refused"},
		admin.DNSPublication{Domain: "example.com", Zone: "example.com", Server: u.named.Addr.String(), Instance: "office", Host: "entente-aaaaaaaa", Confirmed: u.clock, Leaving: true},
	)
	u.has("example.com", "office", "192.0.2.10")
	if status := u.configMap()["status"]; !strings.Contains(status, `"office" stays in example.com until it is found in second.test`) {
		t.Errorf("the status is %q", status)
	}
	moved := u.Config
	moved.Server = u.named.Addr.String()
	second("deny office zonesub ANY;")
	u.begin(moved)
	u.reconcile(0)
	u.wantEvent("NotPublishedInDNS", "REFUSED")
	u.has("example.com", "office", "192.0.2.10")

	// It may write its own records, which cannot be found without pointers.
	second("grant office zonesub SRV TXT A AAAA;")
	u.begin(moved)
	u.reconcile(0)
	u.wantEvent("PointersMissing", "2 more records")
	u.has("example.com", "office", "192.0.2.10")

	second("grant office zonesub ANY;")
	u.begin(moved)
	u.reconcile(0)
	u.has("second.test", "office", "192.0.2.10")
	u.has("example.com", "office")
	var got []string
	for len(u.recorder.Events) > 0 {
		got = append(got, strings.Fields(<-u.recorder.Events)[1])
	}
	if !slices.Equal(got, []string{"PublishedInDNS", "WithdrawnFromDNS"}) {
		t.Errorf("the events are %q", got)
	}
	u.reports(admin.DNSPublication{Domain: "second.test", Zone: "second.test", Server: moved.Server, Instance: "office", Host: "entente-aaaaaaaa", Confirmed: u.clock})

	// Another name of the same server: the removed records are the wanted ones.
	renamed := u.Config
	renamed.Server = fmt.Sprintf("localhost:%d", u.named.Addr.Port())
	u.begin(renamed)
	u.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	u.reconcile(0)
	u.has("second.test", "office", "192.0.2.10")
	if published := u.configMap()["published"]; strings.Count(published, `"zone"`) != 1 {
		t.Errorf("published is %s", published)
	}
}

// What was published is removed with the key of its Secret, or with the one that is used
// now for the same zone, whichever the server takes: keys are renamed and replaced.
func TestRecordsAreRemovedWithAnyKeyThatWorks(t *testing.T) {
	t.Parallel()
	newKey := strings.Replace(keyFile(otherSecret), "office", "bureau", 1)
	all := `zone "example.com" { type primary; file "example.com"; update-policy { grant office zonesub ANY; grant bureau zonesub ANY; }; };`
	for name, tt := range map[string]struct {
		// secret is the content of the Secret that the settings named before, "" for no Secret, and
		// keys are those that the server knows then. The settings now name the new key.
		secret, keys string
	}{
		"the Secret was renamed":        {"", keyFile(updateSecret) + newKey},
		"the key was replaced":          {keyFile(updateSecret), newKey},
		"each key has names of its own": {keyFile(updateSecret), keyFile(updateSecret) + newKey},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpdates(t)
			u.reconcile(0)
			u.has("example.com", "office", "192.0.2.10")
			u.secret(tt.secret)
			u.secretNamed("new-key", newKey)
			u.named.Configure(tt.keys + all)
			u.Config.Secret, u.name = "new-key", "bureau"
			u.begin(u.Config)
			u.reconcile(0)
			u.wantEvent("WithdrawnFromDNS", "office")
			u.has("example.com", "office")
			u.has("example.com", "bureau", "192.0.2.10")
		})
	}
	t.Run("an uninstall, too", func(t *testing.T) {
		t.Parallel()
		u := newUpdates(t)
		u.reconcile(0)
		u.secret("")
		u.secretNamed("new-key", newKey)
		u.named.Configure(keyFile(updateSecret) + newKey + `zone "example.com" { type primary; file "example.com"; update-policy {
	deny bureau name office._entente._tcp.example.com. ANY; grant bureau zonesub ANY; }; };`)
		u.Config.Secret, u.name = "new-key", "bureau"
		u.begin(u.Config)
		u.reconcile(0)
		u.wantEvent("NotWithdrawnFromDNS", "REFUSED")
		u.has("example.com", "bureau", "192.0.2.10")
		u.has("example.com", "office", "192.0.2.10")
		u.named.Configure(keyFile(updateSecret) + newKey + all)
		u.begin(Config{})
		if err := u.removeAll(t.Context()); err != nil || u.configMap() != nil {
			t.Errorf("the uninstall returns %v and leaves %v", err, u.configMap())
		}
		u.has("example.com", "bureau")
		u.has("example.com", "office")
	})
}

// A publication that cannot be removed is remembered and reported, with the commands that remove it
// by hand, until it is gone.
func TestRecordsThatCannotBeRemovedAreReported(t *testing.T) {
	t.Parallel()
	u := newUpdates(t)
	u.reconcile(0)
	u.wantEvent("PublishedInDNS", "office")
	u.secret("")
	cfg := u.Config
	u.begin(Config{})
	u.reconcile(0)
	u.wantEvent("NotWithdrawnFromDNS", `"office" is still in example.com`)
	u.has("example.com", "office", "192.0.2.10")
	lines := u.configMap()["left"]
	for _, want := range []string{
		fmt.Sprintf("server 127.0.0.1 %d", u.named.Addr.Port()), "zone example.com", "send",
		"update delete _entente._tcp.example.com. PTR office._entente._tcp.example.com.",
		"update delete office._entente._tcp.example.com. SRV", "update delete office._entente._tcp.example.com. TXT", "update delete entente-aaaaaaaa.example.com. A",
	} {
		if !slices.Contains(strings.Split(lines, "\n"), want) {
			t.Errorf("%q is not in %s", want, lines)
		}
	}
	// An uninstall reports it, too, and does not wait.
	if err := u.removeAll(t.Context()); err == nil || !strings.Contains(err.Error(), "update delete office._entente._tcp.example.com. SRV") || u.configMap() == nil {
		t.Errorf("the uninstall returns %v", err)
	}
	for i := range 200 {
		if u.reconcile(publishInterval); i == 100 {
			u.secret(keyFile(updateSecret)) // a new one is tried at once
		}
		if u.configMap() == nil {
			if i != 101 {
				t.Errorf("it was gone after %d looks", i)
			}
			break
		}
	}
	u.wantEvent("WithdrawnFromDNS", "office")
	u.has("example.com", "office")

	// An uninstall removes the records.
	u.begin(cfg)
	u.reconcile(publishInterval)
	u.has("example.com", "office", "192.0.2.10")
	u.begin(Config{})
	u.Events = nil
	if err := u.removeAll(t.Context()); err != nil || u.configMap() != nil {
		t.Errorf("the uninstall returns %v and leaves %v", err, u.configMap())
	}
	u.has("example.com", "office")
}

// Another cluster's name is not taken, and the records under the name that was used are removed.
func TestNamesOfOthersAreNotTaken(t *testing.T) {
	t.Parallel()
	u := newUpdates(t)
	mine := u.Service
	u.Service = func() discovery.Service {
		return discovery.NewService(peering.ClusterID(strings.Repeat("b", 32)), "office", 1, []string{"192.0.2.99:7443"})
	}
	u.reconcile(0)
	u.client = fake.NewClientBuilder().WithScheme(kube.Scheme()).Build()
	u.begin(u.Config)
	u.secret(keyFile(updateSecret))
	u.Service = mine
	u.reconcile(0)
	u.wantEvent("PublishedInDNS", `as "office (2)" at entente-aaaaaaaa.example.com`)
	u.has("example.com", "office", "192.0.2.99")
	u.has("example.com", `office\ \(2\)`, "192.0.2.10")
	u.begin(Config{})
	u.reconcile(0)
	u.has("example.com", "office", "192.0.2.99")
	u.has("example.com", `office\ \(2\)`)
}

// What cannot be remembered is not published.
func TestNamesThatCannotBeRememberedAreNotPublished(t *testing.T) {
	t.Parallel()
	u := newUpdates(t)
	u.Publishing.Client = interceptor.NewClient(u.client, interceptor.Funcs{
		Create: func(context.Context, ctrlclient.WithWatch, ctrlclient.Object, ...ctrlclient.CreateOption) error {
			return errors.New("the API server is away")
		},
	})
	if _, err := u.Publishing.reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), "the API server is away") {
		t.Errorf("got %v", err)
	}
	u.has("example.com", "office")
	u.Publishing.Client = u.client
	u.reconcile(publishInterval)
	u.has("example.com", "office", "192.0.2.10")
}

// A server without updates is reported.
func TestAServerWithoutDynamicUpdatesIsReported(t *testing.T) {
	t.Parallel()
	u := newUpdates(t)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	s := &dns.Server{
		PacketConn: pc, UDPSize: 4096, TsigSecret: map[string]string{"office.": updateSecret},
		MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			m.Authoritative = true
			if m.Opcode == dns.OpcodeUpdate {
				tries++
				m.Rcode = dns.RcodeNotImplemented
			}
			m.SetTsig("office.", dns.HmacSHA256, 300, time.Now().Unix())
			_ = w.WriteMsg(m)
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ActivateAndServe() }()
	u.Config.Server = pc.LocalAddr().String()
	for range 360 { // an hour
		u.reconcile(publishInterval)
	}
	u.wantEvent("NotPublishedInDNS", "NOTIMP: the server takes no dynamic updates")
	if err := errors.Join(s.Shutdown(), <-ended); err != nil {
		t.Error(err)
	}
	// 10 s, 20 s, 40 s and so on, and a fifth less.
	if tries < 7 || tries > 12 {
		t.Errorf("%d tries in an hour", tries)
	}
	if cm := u.configMap(); !strings.Contains(cm["published"], `"office"`) {
		t.Errorf("the ConfigMap has %v", cm)
	}
}
