package mdns

import (
	"slices"
	"testing"
	"time"

	"github.com/entente-dev/entente/discovery"
)

// own is what one cluster publishes on another of its nodes, with other addresses.
func own(address string) []discovery.Service {
	s := service(1, "office")
	s.Addresses = addrs(address)
	return []discovery.Service{s}
}

// Another node of the same cluster publishes the same name with other addresses: it
// waits for the first to go, and takes the name then.
func TestTheSameClusterTakesItsNameOver(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*discovery.Service)
		// leave is how the first one ends.
		leave func(*lan, *host)
		after time.Duration
	}{
		"after a goodbye": {leave: func(n *lan, h *host) { h.publish(n.now, nil) }, after: 3 * time.Second},
		"after a crash":   {leave: func(n *lan, h *host) { n.cut[h] = true }, after: 70 * time.Second},
		"another port": {
			change: func(s *discovery.Service) { s.Port = 30743 },
			leave:  func(n *lan, h *host) { h.publish(n.now, nil) }, after: 3 * time.Second,
		},
		"another revision": {
			change: func(s *discovery.Service) { s.Text.API = "2" },
			leave:  func(n *lan, h *host) { h.publish(n.now, nil) }, after: 3 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newLAN(t)
			first, second, other := n.add(), n.add(), n.add()
			other.browse(n.now, []mdnsName{serviceName, automatic})
			first.publish(n.now, own("192.0.2.1"))
			n.run(5 * time.Second)
			services := own("192.0.2.2")
			if tt.change != nil {
				tt.change(&services[0])
			}
			second.publish(n.now, services)
			second.browse(n.now, []mdnsName{serviceName, automatic})
			n.run(2 * time.Minute)
			if found := other.found(); len(found) != 1 || found[0].Instance != "office" || !slices.Equal(found[0].Endpoints, []string{"192.0.2.1:7443"}) {
				t.Errorf("while the first is there %+v is found", found)
			}
			tt.leave(n, first)
			n.run(tt.after)
			want := discovery.Found{Instance: "office", Endpoints: []string{"192.0.2.2:7443"}}
			if services[0].Port != 7443 {
				want.Endpoints = []string{"192.0.2.2:30743"}
			}
			if found := other.found(); len(found) != 1 || found[0].Instance != want.Instance || !slices.Equal(found[0].Endpoints, want.Endpoints) || found[0].Text != services[0].Text {
				t.Errorf("after the first is gone %+v is found, want %+v", found, want)
			}
			if c := second.claims; c[0].label != "entente-1" || c[1].label != "office" || len(second.renames) != 0 {
				t.Errorf("the second is %q on %q", c[1].label, c[0].label)
			}
		})
	}
}

// Two nodes that announce different records, as after a link was cut, give way to each other
// without another name.
func TestTheSameClusterIsNotRenamedWhenLinksMeet(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	first, second, other := n.add(), n.add(), n.add()
	n.cut[second] = true
	first.browse(n.now, []mdnsName{serviceName, automatic})
	second.browse(n.now, []mdnsName{serviceName, automatic})
	first.publish(n.now, own("192.0.2.1"))
	second.publish(n.now, own("192.0.2.2"))
	n.run(10 * time.Second)
	n.cut[second] = false
	other.browse(n.now, []mdnsName{serviceName, automatic})
	n.run(10 * time.Minute)
	for i, h := range []*host{first, second} {
		if c := h.claims; c[0].label != "entente-1" || c[1].label != "office" {
			t.Errorf("%d is %q on %q", i, c[1].label, c[0].label)
		}
	}
	if got := names(other.found()); !slices.Equal(got, []string{"office"}) {
		t.Errorf("found %q", got)
	}
}

// The same cluster with the same records does not conflict: nodes change without a gap.
func TestTheSameClusterWithTheSameRecordsDoesNotConflict(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	n.delay = 1 // packets arrive in order
	first, second, other := n.add(), n.add(), n.add()
	other.browse(n.now, []mdnsName{serviceName, automatic})
	first.publish(n.now, own("192.0.2.1"))
	n.run(5 * time.Second)
	second.publish(n.now, own("192.0.2.1"))
	n.run(5 * time.Second)
	first.publish(n.now, nil)
	for range 300 {
		n.run(100 * time.Millisecond)
		if got := names(other.found()); !slices.Equal(got, []string{"office"}) {
			t.Fatalf("%s after the goodbye of the first %q is found", n.now.Sub(epoch), got)
		}
	}
	if first.stats.Conflicts+second.stats.Conflicts != 0 {
		t.Error("there were conflicts")
	}
}

// An impostor of the same cluster that stays, whatever it sends in between, makes the cluster
// change its name in the end.
func TestWaitingForTheSameClusterEnds(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	squatter, cluster, other := n.add(), n.add(), n.add()
	other.browse(n.now, []mdnsName{serviceName, automatic})
	squatter.publish(n.now, own("192.0.2.1"))
	n.run(5 * time.Second)
	cluster.publish(n.now, own("192.0.2.2"))
	for range 12 {
		n.run(time.Minute)
		squatter.publish(n.now, nil)
		squatter.publish(n.now, own("192.0.2.1"))
	}
	n.run(3 * time.Minute)
	found := other.found()
	if !slices.ContainsFunc(found, func(f discovery.Found) bool { return slices.Equal(f.Endpoints, []string{"192.0.2.2:7443"}) }) {
		t.Errorf("the cluster is not found: %+v, and calls itself %q on %q", found, cluster.claims[1].label, cluster.claims[0].label)
	}
}

// A host that announces the name and the ID of this cluster is reported, while the cluster waits
// for the name and after it has changed; so is one that announces the ID under another name.
// Another node with the same records is not.
func TestImpostorsAreReported(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	squatter, cluster := n.add(), n.add()
	reported := func() []Conflict {
		_, imitations := cluster.collect()
		return cluster.contests(imitations)
	}
	cluster.browse(n.now, []mdnsName{serviceName, automatic})
	squatter.publish(n.now, own("192.0.2.1"))
	n.run(5 * time.Second)
	began := n.now
	cluster.publish(n.now, own("192.0.2.2"))
	n.run(5 * time.Minute)
	got := reported()
	at := slices.IndexFunc(got, func(c Conflict) bool { return c.Name == "entente-1" && !c.ID })
	if at < 0 || got[at].From != squatter.addr || got[at].Renamed != "" || got[at].Since.Sub(began) > 2*time.Second || n.now.Sub(got[at].Last) > 2*time.Minute {
		t.Fatalf("while it waits it reports %+v", got)
	}
	n.run(10 * time.Minute)
	got = reported()
	at = slices.IndexFunc(got, func(c Conflict) bool { return c.Name == "entente-1" && !c.ID })
	if at < 0 || got[at].From != squatter.addr || got[at].Renamed != "entente-1-2" {
		t.Errorf("under another name it reports %+v", got)
	}
	other := own("192.0.2.1")
	other[0].Instance, other[0].Host = "other", "elsewhere"
	imitated := func(c Conflict) bool { return c.Name == "other" && c.ID && c.From == squatter.addr }
	squatter.publish(n.now, other)
	n.run(5 * time.Second)
	if got = reported(); !slices.ContainsFunc(got, imitated) {
		t.Errorf("with its ID elsewhere it reports %+v", got)
	}
	other[0].Addresses = addrs("192.0.2.2") // the same endpoints: harmless
	squatter.publish(n.now, other)
	n.run(5 * time.Second)
	if got = reported(); slices.ContainsFunc(got, imitated) {
		t.Errorf("with another node it reports %+v", got)
	}
}
