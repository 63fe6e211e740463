package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// routes are the commands that a daemon takes. Its socket is root's alone, so
// that who can speak is who could do all this without.
func (d *daemon) routes(lab context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /wait", d.serveWait)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { answer(w, d.status(r.Context()), nil) })
	mux.HandleFunc("POST /fault", func(w http.ResponseWriter, r *http.Request) {
		var q FaultRequest
		if !ask(w, r, &q) {
			return
		}
		f, err := d.setFault(r.Context(), lab, q)
		answer(w, f, err)
	})
	mux.HandleFunc("POST /ready", func(w http.ResponseWriter, r *http.Request) {
		answer(w, struct{}{}, d.allReady(r.Context()))
	})
	mux.HandleFunc("POST /node", func(w http.ResponseWriter, r *http.Request) {
		var q nodeRequest
		if ask(w, r, &q) {
			answer(w, struct{}{}, d.switchNode(r.Context(), q))
		}
	})
	mux.HandleFunc("POST /readdress", func(w http.ResponseWriter, r *http.Request) {
		var q readdressRequest
		if ask(w, r, &q) {
			ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
			defer cancel()
			answer(w, struct{}{}, d.readdress(ctx, q))
		}
	})
	mux.HandleFunc("POST /host", func(w http.ResponseWriter, r *http.Request) {
		var q hostRequest
		if !ask(w, r, &q) {
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
		defer cancel()
		if q.Remove {
			answer(w, HostStatus{}, d.removeHost(ctx, q.Name))
			return
		}
		h, err := d.makeHost(ctx, q.Name, q.LAN)
		answer(w, h, err)
	})
	mux.HandleFunc("POST /load", func(w http.ResponseWriter, r *http.Request) {
		var q loadRequest
		if !ask(w, r, &q) {
			return
		}
		nodes, err := d.loadImage(r.Context(), q.Archive, q.To)
		answer(w, nodes, err)
	})
	return mux
}

func ask(w http.ResponseWriter, r *http.Request, q any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(q); err != nil {
		http.Error(w, "read request: "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// serveWait sends all events, as lines, until the lab is ready or has failed.
func (d *daemon) serveWait(w http.ResponseWriter, r *http.Request) {
	enc := json.NewEncoder(w)
	for n := 0; ; {
		events, wake := d.progress.since(n)
		for _, e := range events {
			if enc.Encode(e) != nil || e.Done {
				return
			}
		}
		n += len(events)
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-r.Context().Done():
			return
		case <-wake:
		}
	}
}

func (d *daemon) switchNode(ctx context.Context, q nodeRequest) error {
	c, n, err := d.plan().Node(q.Node)
	if err != nil {
		return err
	}
	switch q.Action {
	case "stop":
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return d.stopNode(ctx, n)
	case "start":
		return d.startNode(c, n)
	}
	return fmt.Errorf("node action %q: want stop or start", q.Action)
}
