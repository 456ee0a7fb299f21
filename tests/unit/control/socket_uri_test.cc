#include "control/socket_uri.h"

#include <gtest/gtest.h>

namespace cairnfs::control {
namespace {

TEST(SocketUri, WhatMeansSomethingIsANumber) {
  EXPECT_EQ(SocketUri("/var/lib/cairnfs-7/control.sock"), "unix:/var/lib/cairnfs-7/control.sock");
  EXPECT_EQ(SocketUri("/a#b?c%41"), "unix:/a%23b%3Fc%2541");
  EXPECT_EQ(SocketUri("/two words\xff"), "unix:/two%20words%FF");
}

}  // namespace
}  // namespace cairnfs::control
