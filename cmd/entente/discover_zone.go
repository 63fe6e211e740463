package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func (a *app) discoverZoneCommand() *cobra.Command {
	var instance string
	var addresses []string
	var given []netip.Addr
	var ttl time.Duration
	cmd := a.command(&cobra.Command{
		Use:   "zone DOMAIN",
		Short: "Print the records by which others find this cluster in a domain",
		PreRunE: func(*cobra.Command, []string) (err error) {
			given, err = parseAddresses(addresses)
			return err
		},
	}, func(ctx context.Context, r *run) error {
		return r.printZone(ctx, r.argv[0], instance, given, ttl)
	})
	cmd.Flags().StringVar(&instance, "instance", "", "The name that people see in lists (default: the cluster's name)")
	cmd.Flags().StringSliceVar(&addresses, "address", nil, "Where peers can dial this cluster; may be repeated (default: the cluster's own endpoints)")
	cmd.Flags().DurationVar(&ttl, "ttl", dnssd.DefaultTTL, "How long others may cache the records, 30s to 24h")
	return cmd
}

func (r *run) printZone(ctx context.Context, domain, instance string, given []netip.Addr, ttl time.Duration) error {
	info, err := r.self(ctx)
	if err != nil {
		return err
	}
	s, err := serviceOf(info, instance, given)
	if err != nil {
		return err
	}
	records, err := dnssd.Records(s, domain, ttl)
	if err != nil {
		return exit.Usagef("make the records: %w", err)
	}
	if r.output.Structured() {
		var list []any
		for _, rr := range records {
			h := rr.Header()
			list = append(list, map[string]any{
				"name": h.Name, "ttl": h.Ttl, "type": dns.TypeToString[h.Rrtype], "value": strings.TrimPrefix(rr.String(), h.String()),
			})
		}
		return r.writeValue(list)
	}
	text, err := dnssd.Zone(s, domain, ttl)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(r.out, text)
	return err
}

func parseAddresses(texts []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, exit.Usagef("--address %q: want an IP address", text)
		}
		out = append(out, addr)
	}
	return out, nil
}

// serviceOf returns what a cluster publishes about itself: at the given addresses, or
// at those of its endpoints that have the port of the first.
func serviceOf(info *ententev1.GetInfoResponse, instance string, given []netip.Addr) (discovery.Service, error) {
	id, err := peering.ParseClusterID(info.GetClusterId())
	if err != nil {
		return discovery.Service{}, err
	}
	instance = cmp.Or(instance, info.GetClusterName())
	s := discovery.NewService(id, info.GetClusterName(), info.GetProtocol(), info.GetEndpoints())
	s.Instance, s.Automatic, s.Text.Fingerprint = instance, info.GetAutomatic(), info.GetFingerprint()
	if len(given) > 0 {
		s.Addresses = given
	}
	switch {
	case s.Port == 0:
		return s, errors.New("this cluster cannot be dialled: set peer.endpoints or peer.service in the values of its chart")
	case len(s.Addresses) == 0:
		return s, exit.Usagef("none of this cluster's endpoints (%s) is an address that others may dial: give one with --address", strings.Join(info.GetEndpoints(), ", "))
	}
	return s, nil
}
