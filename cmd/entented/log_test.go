package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/grpclog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

func conflict() error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "contracts"}, "c-1", errors.New("the object has been modified"))
}

func terminating() error {
	err := apierrors.NewForbidden(schema.GroupResource{Resource: "rolebindings"}, "x", errors.New("it is being terminated"))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
	return err
}

func TestOrdinaryErrorsAreRecognised(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New("no"))
	for name, row := range map[string]struct {
		err  error
		want bool
	}{
		"a conflict":                              {conflict(), true},
		"a conflict, explained":                   {fmt.Errorf("write status of x: %w", conflict()), true},
		"an object that exists already":           {apierrors.NewAlreadyExists(schema.GroupResource{Resource: "pods"}, "x"), true},
		"a namespace that is terminating":         {fmt.Errorf("bind: %w", terminating()), true},
		"the process is ending":                   {fmt.Errorf("list: %w", context.Canceled), true},
		"several conflicts":                       {errors.Join(conflict(), fmt.Errorf("b: %w", conflict())), true},
		"a conflict that hides something worse":   {errors.Join(conflict(), forbidden), false},
		"something worse before a conflict":       {fmt.Errorf("%w, and %w", errors.New("disk full"), conflict()), false},
		"a forbidden request":                     {forbidden, false},
		"an object that does not exist":           {apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x"), false},
		"time that ran out":                       {context.DeadlineExceeded, false},
		"any other error":                         {errors.New("conflict"), false},
		"no error":                                {nil, false},
		"a list of no errors":                     {errors.Join(), false},
		"a cancellation that a real error caused": {errors.Join(context.Canceled, errors.New("peer is gone")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ordinary(row.err); got != row.want {
				t.Errorf("ordinary(%v) = %v", row.err, got)
			}
		})
	}
}

// libraries is where the libraries log. Some can be configured only once.
var libraries = sync.OnceValue(func() *bytes.Buffer {
	out := &bytes.Buffer{}
	f := logFlags{level: "info", format: "json"}
	logger, err := f.logger(out)
	if err != nil {
		panic(err)
	}
	takeLogs(logger)
	return out
})

func TestLibrariesLogWithThisProgramsLogger(t *testing.T) {
	speak := map[string]func(){
		"klog":               func() { klog.Error("from klog") },
		"structured klog":    func() { klog.ErrorS(errors.New("no"), "from structured klog", "node", "n1") },
		"controller-runtime": func() { ctrl.Log.WithName("x").Error(errors.New("no"), "from controller-runtime") },
		"grpc":               func() { grpclog.Error("from grpc") },
		"slog":               func() { slog.Info("from slog") },
	}
	out := libraries()
	for name, say := range speak {
		t.Run(name, func(t *testing.T) {
			out.Reset()
			say()
			klog.Flush()
			var line struct{ Time, Level, Msg string }
			if err := json.Unmarshal(out.Bytes(), &line); err != nil {
				t.Fatalf("%q is not one line of JSON: %v", out.String(), err)
			}
			if !strings.Contains(line.Msg, "from "+name) || line.Time == "" || line.Level == "" {
				t.Errorf("it logged %+v", line)
			}
		})
	}
}

func TestConflictsAreNotLoggedAsErrors(t *testing.T) {
	for level, lines := range map[string]int{"info": 1, "debug": 2} {
		t.Run(level, func(t *testing.T) {
			var out bytes.Buffer
			f := logFlags{level: level, format: "json"}
			logger, err := f.logger(&out)
			if err != nil {
				t.Fatal(err)
			}
			// As controller-runtime does, with its attributes added before.
			l := logr.FromSlogHandler(logger.Handler()).WithValues("controller", "contracts")
			l.Error(fmt.Errorf("write: %w", conflict()), "Reconciler error")
			l.Error(errors.New("disk full"), "Reconciler error")
			got := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(got) != lines {
				t.Fatalf("%d lines, want %d:\n%s", len(got), lines, out.String())
			}
			if last := got[len(got)-1]; !strings.Contains(last, `"level":"ERROR"`) || !strings.Contains(last, "disk full") {
				t.Errorf("the real error became %s", last)
			}
			if lines == 2 && !strings.Contains(got[0], `"level":"DEBUG"`) {
				t.Errorf("the conflict became %s", got[0])
			}
		})
	}
}

func TestInvalidLogFlagsAreRefused(t *testing.T) {
	for _, f := range []logFlags{{level: "loud", format: "json"}, {level: "info", format: "yaml"}} {
		if _, err := f.logger(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
