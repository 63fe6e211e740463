package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/servingcert"
	"github.com/entente-dev/entente/internal/store"
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

// publishCA publishes the roots by which clients of the admin API verify it.
func (a *agent) publishCA(ctx context.Context) error {
	return store.PublishCA(ctx, a.direct, a.cfg.Namespace, CAConfigMap, CAKey, a.source.Identity().RootPEM())
}

// keepCertificates renews certificates while this agent leads. Another agent may have led before and replaced the
// key.
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
			var again <-chan time.Time
			// The roots change with a rollover, and again when its overlap ends.
			if err := a.publishCA(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot publish the roots of the admin API", "err", err)
			}
			// A new leaf is issued after half of the life of the previous one.
			if err := a.publishFabricCertificate(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot publish the certificate of the nodes' metrics", "err", err)
				again = time.After(certificateAgain)
			}
			select {
			case <-ctx.Done():
				return
			case <-again:
			case <-changes:
			}
		}
	})
	return a.source.Run(ctx)
}

// publishFabricCertificate publishes a certificate with which nodes serve their metrics. A client that controls one
// node can impersonate all nodes to readers of metrics, and to no others.
func (a *agent) publishFabricCertificate(ctx context.Context) error {
	if !a.cfg.NodeMetrics {
		return nil
	}
	pair, err := a.source.AdminTLS(a.fabricNames(), nil).GetCertificate(nil)
	if err != nil {
		return fmt.Errorf("certificate of the nodes' metrics: %w", err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return fmt.Errorf("key of the nodes' metrics: %w", err)
	}
	var chain []byte
	for _, der := range pair.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return store.PublishPair(ctx, a.direct, a.cfg.Namespace, v1alpha1.FabricCertificate, chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}

func (a *agent) certificates(context.Context) error { return a.run(a.keepCertificates) }

// kubeletCertificate returns the function that provides the kubelet API's certificate.
func (a *agent) kubeletCertificate(signer KubeletCertificate) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	switch signer {
	case OwnCertificate, "":
		return a.source.AdminTLS(nil, []netip.Addr{a.cfg.PodIP}).GetCertificate, nil
	case ClusterCertificate:
		certificate, err := servingcert.New(servingcert.Config{
			Client: a.kubernetes, NodeName: "entente-" + a.source.ID().Short(),
			Addresses: func() []netip.Addr { return []netip.Addr{a.cfg.PodIP} },
		})
		if err != nil {
			return nil, err
		}
		return certificate.GetCertificate, a.run(certificate.Run)
	}
	return nil, fmt.Errorf("kubelet certificate %q is unknown: use %s or %s", signer, OwnCertificate, ClusterCertificate)
}
