package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/vk"
)

func (a *agent) identify(ctx context.Context, leafLife time.Duration) error {
	id, err := store.LoadIdentity(ctx, a.direct, a.cfg.Namespace, time.Now())
	if err != nil {
		return err
	}
	if a.tunnelKey, err = store.TunnelKey(ctx, a.direct, a.cfg.Namespace); err != nil {
		return err
	}
	a.source, err = identity.NewSource(identity.SourceConfig{Identity: id, LeafLife: leafLife, Log: a.log})
	if err != nil {
		return err
	}
	return a.publishCA(ctx)
}

// publishCA tells clients of the admin API by which roots to know it.
func (a *agent) publishCA(ctx context.Context) error {
	return store.PublishCA(ctx, a.direct, a.cfg.Namespace, CAConfigMap, CAKey, a.source.Identity().RootPEM())
}

// keepCertificates keeps certificates fresh while this agent leads. Another agent may have
// led before and replaced the key.
func (a *agent) keepCertificates(ctx context.Context) error {
	id, err := store.LoadIdentity(ctx, a.direct, a.cfg.Namespace, time.Now())
	if err != nil {
		return err
	}
	if err := a.source.SetIdentity(id); err != nil {
		return err
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	changes, cancel := a.source.Subscribe()
	defer cancel()
	tasks.Go(func() {
		for {
			// The roots change with a rollover, and again when its overlap ends.
			if err := a.publishCA(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot publish the roots of the admin API", "err", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-changes:
			}
		}
	})
	return a.source.Run(ctx)
}

func (a *agent) certificates(context.Context) error { return a.run(a.keepCertificates) }

// kubeletCertificate returns what gives the kubelet API its certificate.
func (a *agent) kubeletCertificate(signer KubeletCertificate) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	switch signer {
	case OwnCertificate, "":
		return a.source.AdminTLS(nil, []netip.Addr{a.cfg.PodIP}).GetCertificate, nil
	case ClusterCertificate:
		certificate, err := vk.NewServingCertificate(vk.ServingCertificateConfig{
			Client: a.kubernetes, NodeName: "entente-" + a.source.ID().Short(),
			Addresses: func() []netip.Addr { return []netip.Addr{a.cfg.PodIP} },
			Logger:    a.log,
		})
		if err != nil {
			return nil, err
		}
		return certificate.GetCertificate, a.run(certificate.Run)
	}
	return nil, fmt.Errorf("kubelet certificate %q is unknown: use %s or %s", signer, OwnCertificate, ClusterCertificate)
}
