// How gRPC is told the path of a Unix socket to listen on.
#pragma once

#include <string>

namespace cairnfs::control {

// "unix:" and the path, with what has a meaning of its own in a URI ('#', '?', '%') and all that is no plain letter or
// digit as %XX: for servers, which undo %XX. Not for channels, which undo it too, but then split the path at commas.
std::string SocketUri(const std::string& path);

// Of the socket for ranks of every user, which lies beside the control socket.
std::string RankSocketPath(const std::string& control_socket_path);

}  // namespace cairnfs::control
