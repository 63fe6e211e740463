// Package dnsupdate keeps this cluster published in DNS by dynamic updates (RFC 2136), and removes
// what was published elsewhere. It drives discovery/dnssd from the agent's configuration, and
// stores in a ConfigMap what is needed to remove records again.
package dnsupdate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/admin"
)

// Config is where this cluster publishes itself by dynamic updates (RFC 2136).
type Config struct {
	// Server is the primary server of the zone, as HOST or HOST:PORT, where HOST may be an address.
	// "" means that nothing is published, and earlier records are removed.
	Server string
	// Zone is the zone to update, and Domain, within it, where the cluster is published; by default
	// the zone.
	Zone, Domain string
	// Secret, in the agent's namespace, has the key that signs updates (TSIG, RFC 8945) under
	// SecretKey: either as tsig-keygen prints it, or only its secret in base64; then KeyName and
	// Algorithm are needed.
	Secret, SecretKey  string
	KeyName, Algorithm string
	// TTL is the TTL of the records.
	TTL time.Duration
}

const (
	// ConfigMap has, in the agent's namespace, what is published by dynamic updates, and the status
	// of that. It has no managed label, so that after an uninstall it still names what could not be
	// removed.
	ConfigMap = "entente-dns-update"

	updatesPublished, updatesStatus, updatesMissing, updatesLeft = "published", "status", "missing", "left"
)

// place is where a cluster is published, and the Secret with the key for it.
type place struct {
	Server    string `json:"server"`
	Zone      string `json:"zone"`
	Domain    string `json:"domain"`
	Secret    string `json:"secret"`
	SecretKey string `json:"secretKey"`
	KeyName   string `json:"keyName,omitempty"`
	Algorithm string `json:"algorithm,omitempty"`
}

// publication is what is needed to remove published records. It does not have the key, as more
// users may read the ConfigMap.
type publication struct {
	place
	ID peering.ClusterID `json:"id"`
	// Name is the cluster's name, and Instance and Host are the names under which it is published;
	// they differ if another cluster had the names.
	Name      string       `json:"name"`
	Instance  string       `json:"instance"`
	Host      string       `json:"host"`
	Port      uint16       `json:"port"`
	Addresses []netip.Addr `json:"addresses"`
	// Confirmed is when the server was last seen to have the cluster's own records; zero means
	// never.
	Confirmed time.Time `json:"confirmed,omitzero"`
}

// same reports whether two publications are of one cluster in one place, whatever their keys,
// addresses and published names.
func (p publication) same(o publication) bool { return p.label() == o.label() }

func (p publication) label() string {
	return fmt.Sprintf("%q in %s at %s for %s", p.Name, p.Domain+"/"+p.Zone, p.Server, p.ID)
}

// waits reports whether a publication stays until another can be found. Under another name or ID in
// the same domain it would conflict, as host and instance are the same.
func (p publication) waits(want publication) bool {
	return !p.Confirmed.IsZero() && p.ID == want.ID && (p.Domain != want.Domain || p.Name == want.Name)
}

func (p publication) service() discovery.Service {
	return discovery.Service{Instance: p.Instance, Host: p.Host, Port: p.Port, Addresses: p.Addresses, Text: discovery.Text{ID: p.ID}}
}

// Publishing keeps this cluster in DNS as configured, and removes what was published under other
// settings. All exported fields are required.
type Publishing struct {
	Config Config
	// Namespace is the agent's namespace.
	Namespace string
	// Client reads and writes without a cache.
	Client ctrlclient.Client
	// Service returns what to publish.
	Service func() discovery.Service
	Events  events.EventRecorder
	Log     *slog.Logger
	Now     func() time.Time
	// Report is set to the status for administrators; nil means that nothing is published.
	Report *atomic.Pointer[[]admin.DNSPublication]

	// lookup looks up a server's addresses; nil means the system's resolver.
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	// stored is the ConfigMap as last read or written, and known the publications in it, which may
	// not all exist.
	stored *corev1.ConfigMap
	known  []publication
	// tries are by label.
	tries map[string]*attempt
	// missing are records that only the zone's administrator can add.
	missing []string
}

// attempt is the result of publishing or withdrawing, and when it is due again.
type attempt struct {
	// of is a hash of everything on which it depends.
	of       [sha256.Size]byte
	failures int
	next     time.Time
	err      error
}

// Run publishes until ctx ends, or nothing is left to do. The records stay in DNS, so that a
// restart of the agent does not remove them.
func (p *Publishing) Run(ctx context.Context) error {
	for logged := ""; ; {
		done, err := p.reconcile(ctx)
		if done || ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended
		}
		if err != nil && err.Error() != logged {
			p.Log.Warn("cannot read what is published in DNS, so nothing is published", "err", err)
		}
		logged = fmt.Sprint(err)
		if !notify.Pause(ctx, publishInterval) {
			return nil
		}
	}
}

// reconcile does what is due. It is done when nothing is published and nothing has to be. A cluster
// that moves is published in the new place before it is removed from the old one, so that it can
// always be found.
func (p *Publishing) reconcile(ctx context.Context) (done bool, err error) {
	before, err := p.load(ctx)
	if err != nil {
		unknown := publication{place: place{Domain: p.Config.Domain, Server: p.Config.Server}}
		p.Report.Store(&[]admin.DNSPublication{unknown.report(peering.Text(err.Error(), publishText), false)})
		return false, err
	}
	want, service := p.desired()
	var lines, left []string
	var report []admin.DNSPublication
	withdraw := func(old publication) {
		if err := p.withdraw(ctx, old, want); err != nil {
			lines = append(lines, p.recordProblem(ctx, before, "NotWithdrawnFromDNS", err))
			left = append(left, old.removal()...)
			report = append(report, old.report(lines[len(lines)-1], true))
		}
	}
	var waiting []publication
	for _, old := range slices.Clone(p.known) {
		switch {
		case want != nil && old.same(*want):
		case want != nil && old.waits(*want):
			waiting = append(waiting, old)
		default:
			withdraw(old)
		}
	}
	if want != nil {
		err := p.keep(ctx, *want, service)
		line := p.kept(ctx, before, *want, err)
		lines = append(lines, line)
		if err == nil && len(p.missing) == 0 {
			line = "" // nothing is wrong
		}
		report = slices.Insert(report, 0, p.asKnown(*want).report(line, false))
		for _, old := range waiting {
			if line == "" {
				withdraw(old)
				continue
			}
			lines = append(lines, fmt.Sprintf("%q stays in %s until it is found in %s", old.Instance, old.Domain, want.Domain))
			report = append(report, old.report("", true))
		}
		if p.tries[want.label()] == nil {
			_ = p.keep(ctx, *want, service) // the next reconcile gets its error
		}
	} else if len(p.known) == 0 {
		p.Report.Store(nil)
		return true, p.forget(ctx)
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	p.Report.Store(&report)
	return false, p.save(ctx, map[string]string{
		updatesStatus: strings.Join(lines, "\n"), updatesMissing: strings.Join(p.missing, "\n"), updatesLeft: strings.Join(left, "\n"),
	})
}

// asKnown returns the known publication for want, or want itself.
func (p *Publishing) asKnown(want publication) publication {
	if i := slices.IndexFunc(p.known, want.same); i >= 0 {
		return p.known[i]
	}
	return want
}

// report is the status of a publication for administrators.
func (p publication) report(problem string, leaving bool) admin.DNSPublication {
	return admin.DNSPublication{
		Domain: p.Domain, Zone: p.Zone, Server: p.Server, Instance: p.Instance, Host: p.Host, Confirmed: p.Confirmed, Leaving: leaving, Problem: problem,
	}
}

// desired returns what to publish; nil means nothing.
func (p *Publishing) desired() (*publication, discovery.Service) {
	if p.Config.Server == "" {
		return nil, discovery.Service{}
	}
	s := p.Service()
	zone := strings.ToLower(strings.TrimSuffix(p.Config.Zone, "."))
	domain := cmp.Or(strings.ToLower(strings.TrimSuffix(p.Config.Domain, ".")), zone)
	return &publication{
		place: place{
			Server: p.Config.Server, Zone: zone, Domain: domain,
			Secret: p.Config.Secret, SecretKey: p.Config.SecretKey, KeyName: p.Config.KeyName, Algorithm: p.Config.Algorithm,
		},
		ID: s.Text.ID, Name: s.Instance, Instance: s.Instance, Host: s.Host, Port: s.Port, Addresses: s.Addresses,
	}, s
}

// keep publishes if that is due. Its error is why the zone is not up to date.
func (p *Publishing) keep(ctx context.Context, want publication, s discovery.Service) error {
	if i := slices.IndexFunc(p.known, want.same); i >= 0 {
		// It keeps its names, even if better ones are free by now.
		s.Instance, s.Host = p.known[i].Instance, p.known[i].Host
	}
	key, raw, err := p.key(ctx, want.place)
	if err == nil && len(s.Addresses) == 0 {
		err = errors.New("none of this cluster's endpoints is an address that others may dial: set one in peer.endpoints")
	}
	return p.try(ctx, want.label(), []any{s, p.Config, raw, fmt.Sprint(err)}, func() error {
		if err != nil {
			return err
		}
		return p.write(ctx, want, s, key)
	})
}

func (p *Publishing) kept(ctx context.Context, before map[string]string, want publication, err error) string {
	if err != nil {
		return p.recordProblem(ctx, before, "NotPublishedInDNS", fmt.Errorf("%q is not kept in DNS: %w", want.Name, err))
	}
	i := slices.IndexFunc(p.known, want.same)
	if i < 0 {
		return p.recordProblem(ctx, before, "NotPublishedInDNS", fmt.Errorf("%q is not recorded as published in DNS", want.Name))
	}
	text := fmt.Sprintf("published in %s as %q at %s.%s", want.Domain, p.known[i].Instance, p.known[i].Host, want.Domain)
	if len(p.missing) > 0 {
		return p.recordProblem(ctx, before, "PointersMissing", fmt.Errorf("%s, but it cannot be found until the zone has %d more records that its key may not write: see ConfigMap %s",
			text, len(p.missing), ConfigMap))
	}
	if !hasLine(before, text) {
		p.Log.Info("published in DNS", "domain", want.Domain, "instance", p.known[i].Instance)
		p.event(corev1.EventTypeNormal, "PublishedInDNS", text)
	}
	return text
}

// write writes the service into the zone.
func (p *Publishing) write(ctx context.Context, want publication, s discovery.Service, key dnssd.Key) error {
	return p.each(ctx, want.Server, func(server netip.AddrPort) error {
		if i := slices.IndexFunc(p.known, want.same); i >= 0 {
			want.Confirmed = p.known[i].Confirmed
		}
		claim := func(ctx context.Context, instance, host string) error {
			want.Instance, want.Host = instance, host
			return p.remember(ctx, want)
		}
		pub := dnssd.Publisher{Service: s, Domain: want.Domain, Zone: want.Zone, TTL: p.Config.TTL, Key: key, Server: server, Claim: claim}
		status, err := pub.Publish(ctx)
		if err != nil {
			return err
		}
		p.missing = status.Missing
		want.Confirmed = p.Now().UTC().Truncate(time.Second)
		return claim(ctx, status.Instance, status.Host)
	})
}

// withdraw removes a publication if that is due. Its error is why it still exists.
func (p *Publishing) withdraw(ctx context.Context, old publication, want *publication) error {
	keys, of, err := p.keys(ctx, old, want)
	err = p.try(ctx, old.label(), []any{of, fmt.Sprint(err)}, func() error {
		left, err := p.remove(ctx, old, keys, err)
		if err == nil {
			p.withdrawn(old, left, want)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%q is still in %s; remove it by hand with the commands that ConfigMap %s has under %q: %w", old.Instance, old.Domain, ConfigMap, updatesLeft, err)
	}
	return nil
}

// keys returns the keys that may be able to remove a publication, with their sources: that of its
// own Secret, and those with which the same zone is written now, as Secrets are renamed and keys
// replaced. Its error is why there is no key.
func (p *Publishing) keys(ctx context.Context, old publication, want *publication) (keys []dnssd.Key, of [][]byte, err error) {
	places := []place{old.place}
	if want != nil {
		places = append(places, want.place)
	}
	for _, other := range p.known {
		places = append(places, other.place)
	}
	var tried []place
	for _, at := range places {
		if at.Domain = old.Domain; at.Server != old.Server || at.Zone != old.Zone || slices.Contains(tried, at) {
			continue
		}
		tried = append(tried, at)
		key, raw, keyErr := p.key(ctx, at)
		if keyErr == nil {
			keys, of = append(keys, key), append(of, raw)
		} else if err == nil {
			err = keyErr
		}
	}
	if len(keys) > 0 {
		err = nil
	}
	return keys, of, err
}

func (p *Publishing) withdrawn(old publication, left []string, want *publication) {
	p.known = slices.DeleteFunc(p.known, old.same)
	delete(p.tries, old.label())
	if want != nil {
		// These may be two names of one server, and the removed records the wanted ones.
		delete(p.tries, want.label())
	}
	p.Log.Info("removed from DNS", "domain", old.Domain, "instance", old.Instance, "left", left)
	text := fmt.Sprintf("removed %q from %s", old.Instance, old.Domain)
	if len(left) > 0 {
		text += fmt.Sprintf(", except for %d pointers that its key may not remove: %s", len(left), strings.Join(left, "; "))
	}
	p.event(corev1.EventTypeNormal, "WithdrawnFromDNS", text)
}

// remove removes a publication from its zone with the first key that is allowed to, and returns the
// pointers that no key may remove. Without keys it fails with err.
func (p *Publishing) remove(ctx context.Context, old publication, keys []dnssd.Key, err error) (left []string, _ error) {
	for _, key := range keys {
		err = p.each(ctx, old.Server, func(server netip.AddrPort) error {
			pub := dnssd.Publisher{Service: old.service(), Domain: old.Domain, Zone: old.Zone, Key: key, Server: server}
			status, err := pub.Withdraw(ctx)
			left = status.Left
			return err
		})
		if err == nil {
			return left, nil
		}
	}
	return nil, err
}

// removal returns the nsupdate commands that remove a publication by hand.
func (p publication) removal() []string {
	lines, err := dnssd.Removal(p.service(), p.Domain)
	host, port, serverErr := splitServer(p.Server)
	if err != nil || serverErr != nil {
		return nil
	}
	return slices.Concat([]string{fmt.Sprintf("server %s %d", host, port), "zone " + p.Zone}, lines, []string{"send"})
}

// splitServer splits HOST or HOST:PORT; the default port is 53.
func splitServer(server string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(server)
	if err != nil {
		host, text = strings.Trim(server, "[]"), "53"
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if _, name := dns.IsDomainName(host); err != nil || n == 0 || !name && net.ParseIP(host) == nil {
		return "", 0, fmt.Errorf("server %q: want HOST or HOST:PORT", peering.Text(server, publishText))
	}
	return host, uint16(n), nil
}

// each calls do with the addresses of a server until one succeeds. Any address is allowed, as an
// administrator configured the server.
func (p *Publishing) each(ctx context.Context, server string, do func(netip.AddrPort) error) error {
	host, port, err := splitServer(server)
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(host)
	addrs := []netip.Addr{addr}
	if err != nil {
		ctx, cancel := context.WithTimeout(ctx, publishLookup)
		defer cancel()
		lookup := p.lookup
		if lookup == nil {
			lookup = net.DefaultResolver.LookupNetIP
		}
		if addrs, err = lookup(ctx, "ip", host); err != nil {
			return fmt.Errorf("find server %s: %w", host, err)
		}
	}
	var first error
	for _, addr := range addrs[:min(len(addrs), publishServers)] {
		if err := do(netip.AddrPortFrom(addr.Unmap(), port)); err == nil {
			return nil
		} else if first == nil {
			first = err
		}
	}
	first = cmp.Or(first, fmt.Errorf("server %s has no address", host))
	return first
}

// key reads the current key of a Secret, and returns its source too.
func (p *Publishing) key(ctx context.Context, at place) (dnssd.Key, []byte, error) {
	var secret corev1.Secret
	if err := p.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: p.Namespace, Name: at.Secret}, &secret); err != nil {
		return dnssd.Key{}, nil, fmt.Errorf("read the key that signs updates from Secret %s/%s: %w", p.Namespace, at.Secret, err)
	}
	raw, there := secret.Data[at.SecretKey]
	if !there {
		return dnssd.Key{}, nil, fmt.Errorf("read the key that signs updates: Secret %s/%s has no data under %q", p.Namespace, at.Secret, at.SecretKey)
	}
	if bytes.ContainsRune(raw, '{') {
		key, err := dnssd.ParseKey(raw)
		return key, raw, err
	}
	if at.KeyName == "" {
		return dnssd.Key{}, nil, fmt.Errorf("read the key that signs updates: Secret %s/%s does not have its name: set discovery.update.keyName, or store the output of tsig-keygen there", p.Namespace, at.Secret)
	}
	key, err := dnssd.NewKey(at.KeyName, at.Algorithm, strings.TrimSpace(string(raw)))
	return key, raw, err
}

// try calls do if that is due: at once if something on which it depends changed, otherwise after a
// pause. It returns the last error.
func (p *Publishing) try(ctx context.Context, label string, of []any, do func() error) error {
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	a := p.tries[label]
	if hash := sha256.Sum256(text); a == nil || a.of != hash {
		if p.tries == nil {
			p.tries = map[string]*attempt{}
		}
		a = &attempt{of: hash}
		p.tries[label] = a
	}
	if p.Now().Before(a.next) {
		return a.err
	}
	err = do()
	if ctx.Err() != nil {
		return ctx.Err() // the next process reads the result
	}
	if a.failures++; err == nil {
		a.failures = 0
	}
	a.err, a.next = err, p.Now().Add(dnssd.Pause(a.failures))
	return err
}

// load reads what is published. Edits of the ConfigMap count: an administrator who removed records
// by hand removes them there, too.
func (p *Publishing) load(ctx context.Context) (map[string]string, error) {
	cm := &corev1.ConfigMap{}
	err := p.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: p.Namespace, Name: ConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: ConfigMap}}
	} else if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s/%s: %w", p.Namespace, ConfigMap, err)
	}
	p.stored, p.known = cm, nil
	if text := cm.Data[updatesPublished]; text != "" {
		if err := json.Unmarshal([]byte(text), &p.known); err != nil {
			return nil, fmt.Errorf("read what is published from ConfigMap %s/%s (to begin again, delete it, and the records in DNS by hand): %w", p.Namespace, ConfigMap, err)
		}
	}
	return cm.Data, nil
}

// remember records what is about to be published. Beyond the limit, the oldest publication is
// forgotten.
func (p *Publishing) remember(ctx context.Context, now publication) error {
	i := slices.IndexFunc(p.known, now.same)
	if i < 0 {
		p.known = append(p.known, now)
		for len(p.known) > maxPublications {
			p.Log.Warn("limit of remembered publications reached: remove the oldest from DNS by hand", "records", p.known[0].removal())
			p.known = p.known[1:]
		}
	} else {
		p.known[i] = now
	}
	return p.save(ctx, nil)
}

// save writes what is published, and texts, into the ConfigMap; texts that are not given stay.
func (p *Publishing) save(ctx context.Context, texts map[string]string) error {
	cm := p.stored.DeepCopy()
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	maps.Copy(cm.Data, texts)
	delete(cm.Data, updatesPublished)
	if len(p.known) > 0 {
		b, err := json.MarshalIndent(p.known, "", "  ")
		if err != nil {
			return err
		}
		cm.Data[updatesPublished] = string(b)
	}
	maps.DeleteFunc(cm.Data, func(_, text string) bool { return text == "" })
	if maps.Equal(cm.Data, p.stored.Data) {
		return nil
	}
	write := func() error { return p.Client.Update(ctx, cm) }
	if cm.ResourceVersion == "" {
		write = func() error { return p.Client.Create(ctx, cm) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("store what is published in ConfigMap %s/%s: %w", p.Namespace, ConfigMap, err)
	}
	p.stored = cm
	return nil
}

func (p *Publishing) forget(ctx context.Context) error {
	return ctrlclient.IgnoreNotFound(p.Client.Delete(ctx, p.stored))
}

// recordProblem logs a problem and records it as an event, unless it is the last one already, and
// returns it on one line.
func (p *Publishing) recordProblem(ctx context.Context, before map[string]string, reason string, err error) string {
	text := peering.Text(err.Error(), publishText)
	if ctx.Err() == nil && !hasLine(before, text) {
		p.Log.Warn("this cluster's records in DNS are not up to date", "reason", reason, "err", text)
		p.event(corev1.EventTypeWarning, reason, text)
	}
	return text
}

// hasLine reports whether a ConfigMap's status has a line already.
func hasLine(before map[string]string, line string) bool {
	return slices.Contains(strings.Split(before[updatesStatus], "\n"), line)
}

func (p *Publishing) event(kind, reason, text string) {
	if p.Events != nil {
		p.Events.Eventf(p.stored, nil, kind, reason, "PublishInDNS", "%s", peering.Text(text, publishText))
	}
}

// Remove removes everything that is published, at an uninstall. A publication that cannot be
// removed does not keep others from being removed, as the name server often belongs to others. The
// error says what stays, and the ConfigMap that names it stays, too.
func Remove(ctx context.Context, client ctrlclient.Client, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	return (&Publishing{Namespace: namespace, Client: client, Now: time.Now}).removeAll(ctx)
}

func (p *Publishing) removeAll(ctx context.Context) error {
	if _, err := p.load(ctx); err != nil {
		return err
	}
	var errs []error
	for _, old := range p.known {
		keys, _, err := p.keys(ctx, old, nil)
		if _, err = p.remove(ctx, old, keys, err); err != nil {
			errs = append(errs, fmt.Errorf("%q stays in %s: %w; remove it by hand, with nsupdate: %s", old.Instance, old.Domain, err, strings.Join(old.removal(), "; ")))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return p.forget(ctx)
}
