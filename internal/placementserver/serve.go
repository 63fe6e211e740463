// Package placementserver serves the placement webhook in an agent, tells DaemonSets that it keeps their pods off
// virtual nodes, and checks that what places pods works, be it that webhook or the chart's policies.
package placementserver

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
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/entente-dev/entente/internal/placement"
)

// Config configures the server of the webhook.
type Config struct {
	// Address is where it listens, Certificate the directory of its tls.crt and tls.key.
	Address, Certificate string
	Webhook              *placement.Webhook
	Log                  *slog.Logger
}

// Listen reads the certificate and listens. The API server is answered once both functions that it returns run,
// until their contexts end.
func Listen(ctx context.Context, cfg Config) (watch, serve func(context.Context) error, err error) {
	certificate, err := certwatcher.New(filepath.Join(cfg.Certificate, "tls.crt"), filepath.Join(cfg.Certificate, "tls.key"))
	if err != nil {
		return nil, nil, fmt.Errorf("read the certificate of the placement webhook: %w", err)
	}
	web := &http.Server{
		Handler:           cfg.Webhook,
		TLSConfig:         &tls.Config{GetCertificate: certificate.GetCertificate, MinVersion: tls.VersionTLS13},
		ReadHeaderTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: time.Minute,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for the placement webhook on %s: %w", cfg.Address, err)
	}
	return certificate.Start, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = web.Close() })()
		if err := web.ServeTLS(netutil.LimitListener(listener, maxConnections), "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the placement webhook: %w", err)
		}
		return nil
	}, nil
}
