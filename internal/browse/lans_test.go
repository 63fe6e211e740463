package browse

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/sightings"
	"github.com/entente-dev/entente/peering"
)

// lansTest is an agent that reads what fabrics report.
type lansTest struct {
	*LANs
	t     *testing.T
	clock time.Time
	c     client.Client
}

func newLANs(t *testing.T) *lansTest {
	l := &lansTest{t: t, clock: time.Unix(1e9, 0)}
	l.c = fake.NewClientBuilder().WithScheme(kube.Scheme()).WithStatusSubresource(&v1alpha1.NodeDiscovery{}).Build()
	l.LANs = &LANs{
		Reader: l.c, Now: func() time.Time { return l.clock }, Log: slog.New(slog.DiscardHandler),
		Dialable: func(e []string) []string {
			return discovery.DialableEndpoints(e, netip.MustParsePrefix("10.0.0.0/8"))
		},
	}
	return l
}

// reports has the fabric of node a write, by a clock that is an hour off.
func (l *lansTest) reports(listened time.Duration, found ...v1alpha1.DiscoveredCluster) {
	l.t.Helper()
	nd := &v1alpha1.NodeDiscovery{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if l.c.Get(l.t.Context(), client.ObjectKeyFromObject(nd), nd) != nil {
		if err := l.c.Create(l.t.Context(), nd); err != nil {
			l.t.Fatal(err)
		}
	}
	at := l.clock.Add(-time.Hour)
	nd.Status = v1alpha1.NodeDiscoveryStatus{
		Interfaces: []string{"eth0"}, Clusters: found, ObservedAt: metav1.NewTime(at), Since: new(metav1.NewTime(at.Add(-listened))),
	}
	if err := l.c.Status().Update(l.t.Context(), nd); err != nil {
		l.t.Fatal(err)
	}
}

// sees returns what is found, and whether earlier results still count.
func (l *lansTest) sees() string {
	looked := l.Snapshot()
	var out []string
	for _, s := range looked.Found {
		out = append(out, fmt.Sprintf("%c %v", s.ID[0], s.Endpoints))
	}
	for p, stands := range looked.Places {
		out = append(out, fmt.Sprintf("%s/%s/%s %s", p.Source, p.Where, p.Node, map[bool]string{true: "stands", false: "is all"}[stands]))
	}
	return strings.Join(out, ", ")
}

func foundCluster(c byte, endpoints ...string) v1alpha1.DiscoveredCluster {
	return v1alpha1.DiscoveredCluster{Interface: "eth0", ClusterID: string(testID(c)), Name: string(c), Endpoints: endpoints}
}

// A cluster counts as gone only while the fabric reports, and only once it has listened for a
// while. Clocks of nodes do not matter.
func TestASilentFabricsReportExpires(t *testing.T) {
	t.Parallel()
	l := newLANs(t)
	x := foundCluster('x', "192.0.2.7:7443")
	const found, all, stands = "x [192.0.2.7:7443], ", "LAN/eth0/a is all", "LAN/eth0/a stands"
	check := func(what, want string) {
		t.Helper()
		if got := l.sees(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("no node", "")
	l.reports(0, x)
	check("it has just begun", found+stands)
	l.clock = l.clock.Add(sightings.LANConvergence)
	l.reports(sightings.LANConvergence, x)
	check("it has listened for a while", found+all)
	l.clock = l.clock.Add(time.Second)
	l.reports(time.Minute)
	check("it lost it", all)
	l.reports(time.Minute, x)
	l.clock = l.clock.Add(lanReportLate - time.Second)
	check("it reported recently", found+all)
	l.clock = l.clock.Add(time.Second)
	check("it is silent", found+stands)
	l.clock = l.clock.Add(lanReportExpires - lanReportLate - time.Second)
	check("it is silent for long", found+stands)
	l.clock = l.clock.Add(time.Second)
	check("it is silent for too long", "")
	l.reports(time.Hour, x)
	check("it reports again", found+all)
	if err := l.c.Delete(t.Context(), &v1alpha1.NodeDiscovery{ObjectMeta: metav1.ObjectMeta{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	check("its NodeDiscovery is gone", "")
}

func TestReportsOfBeforeTheStartExpire(t *testing.T) {
	t.Parallel()
	l := newLANs(t)
	l.reports(time.Hour, foundCluster('x', "192.0.2.7:7443"))
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{0, "stands"}, {lanReportExpires - 1, "stands"}, {1, ""}} {
		l.clock = l.clock.Add(step.after)
		if got := l.sees(); !strings.Contains(got, step.want) || (step.want == "") != (got == "") {
			t.Errorf("after %s: %q", step.after, got)
		}
	}
	l.reports(time.Hour)
	if got := l.sees(); got != "LAN/eth0/a is all" {
		t.Errorf("after a report: %q", got)
	}
}

// The fabric's endpoints and names are validated again.
func TestFabricReportsAreValidated(t *testing.T) {
	t.Parallel()
	bad := foundCluster('y', "192.0.2.8:7443")
	bad.ClusterID = "../y"
	elsewhere := foundCluster('z', "192.0.2.9:7443")
	elsewhere.Interface = "eth7"
	nameless := foundCluster('n', "192.0.2.10:7443")
	nameless.Name = "a\nb" + strings.Repeat("c", 100)
	many := foundCluster('m', slices.Repeat([]string{"192.0.2.11:7443"}, 20)...)
	l := newLANs(t)
	l.reports(time.Hour, foundCluster('x', "10.96.0.1:443", "169.254.169.254:80", "office.example:7443", "[fe80::1%eth0]:7443", "192.0.2.7:7443"), foundCluster('i', "10.0.0.1:7443"), bad, elsewhere, nameless, many)
	looked := l.Snapshot()
	var got []string
	for _, s := range looked.Found {
		got = append(got, fmt.Sprintf("%c %d %d", s.ID[0], len(s.Endpoints), len(s.Name)))
		if s.Name != strings.ToValidUTF8(s.Name, "") || strings.Contains(s.Name, "\n") {
			t.Errorf("name %q", s.Name)
		}
	}
	if want := []string{"x 1 1", "n 1 64", "m 8 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	l.Dialable = func([]string) []string { return nil }
	if looked := l.Snapshot(); len(looked.Found) != 0 || len(looked.Places) != 1 {
		t.Errorf("before the forbidden prefixes are known, %+v is accepted", looked)
	}
}

func TestLookAllMergesItsSources(t *testing.T) {
	t.Parallel()
	one := func(source v1alpha1.Source, c byte) func() sightings.Snapshot {
		place := sightings.Place{Source: source, Where: string(c)}
		return func() sightings.Snapshot {
			return sightings.Snapshot{Places: map[sightings.Place]bool{place: true}, Found: []sightings.Sighted{{ID: testID(c)}}}
		}
	}
	if all := All(one(v1alpha1.SourceLAN, 'x'), one(v1alpha1.SourceDNS, 'y'), (&Domains{}).Snapshot)(); len(all.Found) != 2 || len(all.Places) != 2 {
		t.Errorf("got %+v", all)
	}
}

func testID(c byte) peering.ClusterID { return peering.ClusterID(strings.Repeat(string(c), 32)) }
