package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/grpclog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// takeLogs redirects the logs of the libraries to this program's.
func takeLogs(log *slog.Logger) {
	slog.SetDefault(log) // and with it the standard library's log
	klog.SetSlogLogger(log)
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(log.Handler(), slog.LevelError).Writer()))
}

// calm is a handler that logs ordinary errors of Kubernetes' libraries only at level debug. A
// reconciler also returns an error to be called again.
type calm struct{ slog.Handler }

func (h calm) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && ordinaryRecord(r) {
		r.Level = slog.LevelDebug
		if !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h calm) WithAttrs(attrs []slog.Attr) slog.Handler { return calm{h.Handler.WithAttrs(attrs)} }

func (h calm) WithGroup(name string) slog.Handler { return calm{h.Handler.WithGroup(name)} }

// ordinaryRecord reports whether a record is about an ordinary error.
func ordinaryRecord(r slog.Record) bool {
	found := false
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && (a.Key == "err" || a.Key == "error") {
			found = ordinary(err)
			return false
		}
		return true
	})
	return found
}

// ordinary reports whether an error is part of how Kubernetes works: another writer
// was faster, a cache is behind, a namespace is being deleted, this process is
// ending. Of several errors all have to be.
func ordinary(err error) bool {
	for err != nil { // level by level
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			all := joined.Unwrap()
			return len(all) > 0 && !slices.ContainsFunc(all, func(e error) bool { return !ordinary(e) })
		}
		if _, ok := err.(apierrors.APIStatus); ok {
			return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
		}
		if err == context.Canceled { //nolint:errorlint // level by level
			return true
		}
		err = errors.Unwrap(err)
	}
	return false
}
