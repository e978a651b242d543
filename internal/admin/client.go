package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/seed-12ef14e5/capstan/internal/daemon"
)

// maxAnswer bounds what a client reads.
const maxAnswer = 16 << 20

// Client asks a daemon. Safe for concurrent use.
type Client struct {
	http *http.Client
	// address is for people, base for requests.
	address, base string
}

// AnswerError is an answer that is an error.
type AnswerError struct {
	Code int
	Failure
}

func (e *AnswerError) Error() string {
	text := e.Failure.Error
	if text == "" {
		text = http.StatusText(e.Code)
	}
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

// UnreachableError says that no daemon answers.
type UnreachableError struct {
	Address string
	Err     error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no daemon answers at %s: %v (is capstan serve running? --admin or CAPSTAN_ADMIN says where)", e.Address, e.Err)
}

// Unwrap returns the reason.
func (e *UnreachableError) Unwrap() error { return e.Err }

// NewClient returns a Client for an address as in the daemon's configuration: HOST:PORT or unix:PATH. It does no I/O.
func NewClient(address string) *Client {
	transport := &http.Transport{DisableKeepAlives: true}
	base := "http://" + address
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
	}
	return &Client{http: &http.Client{Transport: transport}, address: address, base: base}
}

// Status returns the daemon's status, and its JSON as it came.
func (c *Client) Status(ctx context.Context) (Status, []byte, error) {
	var s Status
	body, err := c.ask(ctx, http.MethodGet, "/status", "", &s)
	return s, body, err
}

// Control tells a route to do something. Errors: *UnreachableError, *AnswerError.
func (c *Client) Control(ctx context.Context, route string, verb daemon.Verb, token string) (daemon.Result, error) {
	var r daemon.Result
	name, target, ok := strings.Cut(route, "/")
	path := "/routes/" + url.PathEscape(name)
	if ok {
		path += "/" + url.PathEscape(target)
	}
	_, err := c.ask(ctx, http.MethodPost, path+"/"+string(verb), token, &r)
	return r, err
}

func (c *Client) ask(ctx context.Context, method, path, token string, into any) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the address once more
		}
		return nil, &UnreachableError{c.address, err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, &UnreachableError{c.address, err}
	}
	if resp.StatusCode != http.StatusOK {
		e := &AnswerError{Code: resp.StatusCode}
		_ = json.Unmarshal(body, &e.Failure) // else the code says it
		return nil, e
	}
	if err := json.Unmarshal(body, into); err != nil {
		return nil, fmt.Errorf("read the daemon's answer: %w", err)
	}
	return body, nil
}
