package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/net/netutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

// placePods serves the placement webhook, for API servers that have no MutatingAdmissionPolicies.
func (a *agent) placePods(ctx context.Context, cfg PlacementConfig) error {
	certificate, err := certwatcher.New(filepath.Join(cfg.Certificate, "tls.crt"), filepath.Join(cfg.Certificate, "tls.key"))
	if err != nil {
		return fmt.Errorf("read the certificate of the placement webhook: %w", err)
	}
	// Its informer has to exist before the first pod.
	if _, err := a.mgr.GetCache().GetInformer(ctx, &v1alpha1.NamespaceOffloading{}); err != nil {
		return fmt.Errorf("watch NamespaceOffloadings: %w", err)
	}
	daemonSets := newKeptOff(a.direct, a.events)
	if err := a.run(daemonSets.run); err != nil {
		return err
	}
	web := &http.Server{
		Handler:           &placement.Webhook{Offloading: a.offloadingOf, KeptOff: daemonSets.add, Log: a.log},
		TLSConfig:         &tls.Config{GetCertificate: certificate.GetCertificate, MinVersion: tls.VersionTLS13},
		ReadHeaderTimeout: placementTimeout, ReadTimeout: placementTimeout, WriteTimeout: placementTimeout, IdleTimeout: time.Minute,
		MaxHeaderBytes: maxPlacementHeader,
		ErrorLog:       slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for the placement webhook on %s: %w", cfg.Address, err)
	}
	if err := a.run(certificate.Start); err != nil {
		return err
	}
	return a.run(func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = web.Close() })()
		if err := web.ServeTLS(netutil.LimitListener(listener, maxPlacementConnections), "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the placement webhook: %w", err)
		}
		return nil
	})
}

// offloadingOf returns how a namespace is offloaded; nil if it is not, or no longer.
func (a *agent) offloadingOf(ctx context.Context, namespace string) (*v1alpha1.NamespaceOffloading, error) {
	var o v1alpha1.NamespaceOffloading
	err := a.mgr.GetCache().Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}, &o)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // nil means not offloaded
	case err != nil:
		return nil, fmt.Errorf("read the NamespaceOffloading of namespace %s: %w", namespace, err)
	}
	return &o, nil
}
